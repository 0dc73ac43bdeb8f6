"""Terms of traffic that a user's strategy states are checked where they are read."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strategies import PRESETS, Axis, TrainConfig
from strategies.core.traffic import Traffic, traffic
from strategies.costs.predict import predict_axes
from strategies.infeasible import BrokenStrategy
from strategies.mesh import MeshSpec


class Mute(Exception):
    """An error that cannot say its message."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError


def raising(error: BaseException) -> Callable[[Any], Iterator[Traffic]]:
    """A term that raises an error."""

    def term(plan: Any) -> Iterator[Traffic]:
        raise error

    return term


def changed(**fields: Any) -> Callable[[Any], Iterator[Any]]:
    """A term whose traffic has other fields."""
    right = {"what": "x", "kind": "all_reduce", "axes": ("data",), "operand_bytes": 4, "sent_bytes": 4}
    return lambda plan: iter([Traffic(**right | fields)])


BROKEN = {
    "no term": (lambda plan: ["x"], "ValueError: a value is 'x'; pass a Traffic"),
    "nothing": (lambda plan: None, "TypeError: .*must be an iterable, not NoneType"),
    "error": (raising(KeyError("boom")), "KeyError: 'boom'"),
    "exit": (lambda plan: sys.exit(0), "SystemExit: 0"),
    "mute": (raising(Mute()), r"Mute: \(without a message: its __str__ raised RuntimeError\)"),
    "kind": (changed(kind="all_sum"), "ValueError: kind='all_sum' cannot be"),
    "helper": (
        lambda plan: traffic(plan, "x", "all_sum", ("data",), 4),
        "UnknownName: 'all_sum' is not a kind of coll",
    ),
    "axes": (changed(axes=("dta",)), r"ValueError: axes=\('dta',\) cannot be"),
    "a string": (changed(axes="data"), "ValueError: axes='data' cannot be"),
    "bytes": (changed(sent_bytes="4"), "ValueError: sent_bytes='4' cannot be"),
    "below zero": (changed(operand_bytes=-4), "ValueError: operand_bytes=-4 cannot be"),
    "part": (changed(when="later"), "ValueError: when='later' cannot be"),
}


@pytest.mark.parametrize(("term", "cause"), BROKEN.values(), ids=BROKEN)
def test_a_broken_term_is_named(term: Callable, cause: str) -> None:
    """A user's term that raises, or yields what is not traffic over axes of the mesh, is one error that names it."""
    axis = Axis("data", batch=True, traffic=(term,))
    cost = predict_axes((axis,), PRESETS["nano"], MeshSpec.parse("data=2"), TrainConfig(8))
    with pytest.raises(BrokenStrategy, match=rf"the term .* of a user's strategy raises or yields .*\({cause}"):
        _ = cost.sent


def test_a_right_term_is_stated() -> None:
    """A user's term that yields traffic is part of what is sent."""
    axis = Axis("data", batch=True, traffic=(changed(what="mine"),))
    cost = predict_axes((axis,), PRESETS["nano"], MeshSpec.parse("data=2"), TrainConfig(8))
    assert cost.sent["all_reduce", ("data",)]["mine"] == 4
