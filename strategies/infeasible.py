"""What does not fit together or is broken: the errors, and the words that name the legal sizes."""

import math
from collections.abc import Sequence
from functools import cache


class Infeasible(ValueError):
    """Model, mesh and batch do not fit together. The message names the numbers and the legal values."""


class BrokenStrategy(ValueError):
    """A function of a user's strategy fails, or returns what it must not. The message names the function."""


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a size, in order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, min(math.isqrt(number), 2**20) + 1) if number % d == 0]  # sizes have 40 bits
    return tuple(sorted({*small, *(number // d for d in small)}))


SHOWN_DIVISORS = 24
"""Most divisors that a message lists: the numbers up to 360 have no more."""


def legal(number: int, subject: str) -> str:
    """State in words the divisors of a number, for error messages.

    >>> legal(8, "tensor")
    'tensor can be 1, 2, 4 or 8'
    """
    return one_of(divisors(number), subject)


def one_of(sizes: Sequence[int], subject: str) -> str:
    """State in words the sizes that are legal."""
    texts = [str(size) for size in sizes]
    if len(texts) > SHOWN_DIVISORS:
        return f"{subject} can be {', '.join(texts[: SHOWN_DIVISORS - 1])} ... or {texts[-1]}"
    return f"{subject} can be {' or '.join(filter(None, [', '.join(texts[:-1]), texts[-1]]))}"


def require_divides(name: str, size: int, subject: str = "", /, **numbers: int) -> None:
    """Check that a size, as of a mesh axis, divides numbers of the model. The message calls it `subject`, or `name`.

    Raises:
        Infeasible: it does not; the message names both numbers and the legal sizes.
    """
    for other, number in numbers.items():
        if number % size:
            raise Infeasible(f"{name}={size} does not divide {other}={number}; {legal(number, subject or name)}")
