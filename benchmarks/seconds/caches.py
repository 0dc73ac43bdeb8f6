"""What the caches of a host hold of what its virtual devices have between two uses."""

from benchmarks.seconds.stack import Stack
from strategies.costs.predict import Cost


def far_bytes(cost: Cost, stack: Stack, sharing: int) -> float:
    """How many bytes take as long to stream as a byte of weights, gradients or optimizer state.

    A step uses each of these once or twice, and all else of all devices in between. Caches hold a share of it.

    Args:
        cost: the step.
        stack: with the size of the cache; without one, all comes from memory.
        sharing: how many devices share it.
    """
    missed = max(0.0, 1 - stack.cache_bytes / (sharing * cost.needed_bytes))
    return 1 + missed * (stack.cold_bytes - 1)
