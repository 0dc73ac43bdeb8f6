"""The regression gates: `exact` compares counters of compiled programs, `paired` compares step times."""
