"""The paired gate: two checkouts that take turns on this machine, launch after launch, and what their times say."""
