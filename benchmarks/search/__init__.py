"""Search: candidates ranked by predicted seconds, and the best as compiled and as measured."""
