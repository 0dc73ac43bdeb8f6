"""The paired gate: times two checkouts interleaved on this machine, over several launches, and judges the change."""
