"""One page of HTML about runs and searches: what it says in words, the data that it carries, and its static files."""
