"""Errors for what does not fit together or is broken, and wording of the legal sizes."""

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property


class Infeasible(ValueError):
    """Model, mesh and batch do not fit together. The message names the numbers and the legal values.

    Attributes:
        narrowed: for a problem that may not be the only one: () -> the end of the message, which depends on the other
            problems. It is called when the message is read.
    """

    narrowed: Callable[[], str] | None = None

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> tuple[type, tuple[str]]:
        """Pickles as an error with a fixed message."""
        return Infeasible, (str(self),)

    @cached_property
    def _message(self) -> str:
        return f"{self.alone}{self.narrowed()}" if self.narrowed else self.alone

    @property
    def alone(self) -> str:
        """The message about only this problem. It makes no plan."""
        return super().__str__()


class BrokenStrategy(ValueError):
    """A function of a user's strategy fails or returns something invalid. The message names the function."""


class WrongSize(Infeasible):
    """A size does not fit. The message lists the sizes that do.

    Attributes:
        subject: name of the size, such as that of a mesh axis.
        sizes: those that solve this problem.
        rest: text after the list.
    """

    def __init__(self, problem: str, subject: str, sizes: Sequence[int], rest: str = "") -> None:
        super().__init__(problem)
        self.problem, self.subject, self.sizes, self.rest = problem, subject, sizes, rest

    @cached_property
    def _message(self) -> str:
        return f"{self.problem}; {self.narrowed()}" if self.narrowed else self.alone

    @property
    def alone(self) -> str:
        """The message with the sizes that solve only this problem. It makes no plan."""
        return f"{self.problem}; {one_of(self.sizes, self.subject)}{self.rest}"


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a size, in order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, min(math.isqrt(number), 2**20) + 1) if number % d == 0]  # sizes have 40 bits
    return tuple(sorted({*small, *(number // d for d in small)}))


SHOWN_DIVISORS = 24
"""Upper bound on the divisors that a message lists: no number up to 360 has more."""


def legal(number: int, subject: str) -> str:
    """The divisors of a number in words, for error messages.

    >>> legal(8, "tensor")
    'tensor can be 1, 2, 4 or 8'
    """
    return one_of(divisors(number), subject)


def one_of(sizes: Sequence[int], subject: str) -> str:
    """The legal sizes in words."""
    texts = [str(size) for size in sizes]
    if len(texts) > SHOWN_DIVISORS:
        return f"{subject} can be {', '.join(texts[: SHOWN_DIVISORS - 1])} ... or {texts[-1]}"
    return f"{subject} can be {' or '.join(filter(None, [', '.join(texts[:-1]), texts[-1]]))}"


def require_divides(name: str, size: int, subject: str = "", /, **numbers: int) -> None:
    """Check that a size, such as a mesh axis, divides numbers of the model. Messages call it `subject`, or `name`."""
    for other, number in numbers.items():
        if number % size:
            raise WrongSize(f"{name}={size} does not divide {other}={number}", subject or name, divisors(number))


def require_at_most(name: str, size: int, **numbers: int) -> None:
    """Check that a size does not exceed numbers of the model."""
    for other, number in numbers.items():
        if size > number:
            raise Infeasible(f"{name}={size} is more than {other}={number}; use at most {number}")
