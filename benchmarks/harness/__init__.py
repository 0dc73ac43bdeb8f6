"""Runs many cases without losing finished rows: supervisor, session, journal and watchdog."""
