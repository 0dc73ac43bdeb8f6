"""The HTML page about runs and searches: its summary sentences, its embedded data, and its static files."""
