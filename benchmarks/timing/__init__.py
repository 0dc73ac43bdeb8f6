"""How steps are compiled, checked against one device, and timed in turns; and where their time goes."""
