"""What the commands of `benchmarks` share: their options, parsers, and how they refuse what is not possible."""
