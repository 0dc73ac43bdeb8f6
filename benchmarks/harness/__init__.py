"""A run of many cases that loses no finished row: the supervisor, the session, the journal and the watchdog."""
