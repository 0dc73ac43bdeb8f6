"""Search: candidates ranked by predicted seconds, improvements, and the best as compiled and as measured."""
