"""Wall time of a run by phase."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds spent in each phase of a run. Time outside all phases is overhead."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.phases: list[str] = []  # that are running, outer ones first
        self._begins: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the body to a phase, whether it succeeds or not."""
        start = time.perf_counter()
        self.phases.append(name)
        self._begins[name] = start
        try:
            yield
        finally:
            self.phases.pop()
            self._begins.pop(name, None)  # a phase may be inside another of its name
            self.seconds[name] += time.perf_counter() - start

    def running_seconds(self, name: str) -> float:
        """Seconds for which a phase is running; 0 if it is not."""
        return time.perf_counter() - self._begins[name] if name in self._begins else 0.0

    @property
    def total_seconds(self) -> float:
        """Seconds since the clock was created."""
        return time.perf_counter() - self.start

    def __str__(self) -> str:
        """Time by phase, such as `80 s: compile 50 s, timed 20 s, other 10 s (12%)`."""
        total = self.total_seconds
        other = total - sum(self.seconds.values())
        phases = "".join(f"{name} {seconds:.0f} s, " for name, seconds in self.seconds.items())
        return f"{total:.0f} s: {phases}other {other:.0f} s ({other / total:.0%})"
