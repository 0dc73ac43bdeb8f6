"""What a training run prints: a line for each logged step, in place on a terminal, and one for each evaluation."""

import sys
import time

from benchmarks.cli.tables import minutes

ERASE = "\r\x1b[K"


class Progress:
    """Prints progress, with the time left.

    Args:
        steps: where the run ends.
        after: the step after which it begins.
        silent: print nothing, as all processes but the first.
    """

    def __init__(self, steps: int, after: int, *, silent: bool) -> None:
        self.steps, self.after, self.silent = steps, after, silent
        self.in_place = sys.stdout.isatty()
        self.start_seconds = time.perf_counter()

    def step(self, number: int, loss: float, tokens_per_second: float) -> None:
        """A logged step. On a terminal the next line takes its place."""
        each = (time.perf_counter() - self.start_seconds) / (number - self.after)
        left = f", about {minutes(each * (self.steps - number))} left" if number < self.steps else ""
        text = f"step {number}/{self.steps}: loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s{left}"
        self._print(text, end="" if self.in_place and number < self.steps else "\n")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._print(text)

    def _print(self, text: str, end: str = "\n") -> None:
        if not self.silent:
            print(f"{ERASE if self.in_place else ''}{text}", end=end, flush=True)
