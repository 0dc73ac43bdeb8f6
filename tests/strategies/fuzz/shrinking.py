"""The smallest composition that fails as a given one does."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from strategies import STRATEGIES, MeshSpec
from tests.strategies.fuzz.composition import Composition

Edit = Callable[[Composition], Composition]
SIZES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "model": {"layers": (1, 2, 3), "heads": (1, 2, 4), "embed": (8, 16, 32), "vocab": (64,), "sequence": (16, 32)},
    "train": {"batch_size": (1, 2, 4, 8), "microbatches": (1, 2, 4)},
}
"""Smaller values of the fields that every composition has."""


def kind_of(error: BaseException) -> str:
    """The type of an error, and the innermost function of ours that raised it. Two failures are alike if both are."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/strategies/" in frame.filename]
    return " in ".join([type(error).__name__, *(f"{Path(frame.filename).name} {frame.name}" for frame in ours[-1:])])


def failure(attempt: Callable[[Composition], Any], composition: Composition) -> str:
    """The kind of failure of an attempt; empty if it does not raise."""
    try:
        attempt(composition)
    except Exception as error:
        return kind_of(error)
    return ""


def shrink(composition: Composition, fails: Callable[[Composition], bool]) -> Composition:
    """The smallest composition that fails: no edit of it alone makes a smaller one that fails, too."""
    before = None
    while composition != before:
        before = composition
        for edit in _edits(before):
            edited = edit(composition)
            if edited != composition and fails(edited):
                composition = edited
    return composition


def _edits(composition: Composition) -> Iterator[Edit]:
    """Edits that simplify a composition, those first that leave least to trace."""
    yield partial(replace, backend="cpu")
    for axis in MeshSpec.parse(composition.mesh).sizes:
        yield partial(_with_axis, axis, 1)
        yield partial(_with_axis, axis, 2)
    for axis in composition.strategy.split("+"):
        yield partial(_without_axis, axis)
    if not composition.is_registered:
        yield from (partial(replace, strategy=name) for name in STRATEGIES)
    for part, sizes in SIZES.items():
        for name in getattr(composition, part):
            if name not in sizes:
                yield partial(_without, part, name)
        for name, values in sizes.items():
            yield from (partial(_with_size, part, name, value) for value in values)


def _with_axis(axis: str, size: int, composition: Composition) -> Composition:
    """The same with a smaller mesh axis, or without the axis if its size is 1."""
    sizes = MeshSpec.parse(composition.mesh).sizes
    if sizes.get(axis, 1) <= size or (size == 1 and len(sizes) == 1):
        return composition
    changed = {name: size if name == axis else old for name, old in sizes.items()}
    return replace(composition, mesh=",".join(f"{name}={n}" for name, n in changed.items() if n > 1))


def _without_axis(axis: str, composition: Composition) -> Composition:
    """The same with an own strategy of one axis less."""
    left = [name for name in composition.strategy.split("+") if name != axis]
    return replace(composition, strategy="+".join(left)) if left else composition


def _without(part: str, name: str, composition: Composition) -> Composition:
    """The same with the default of a field."""
    return replace(composition, **{part: {k: v for k, v in getattr(composition, part).items() if k != name}})


def _with_size(part: str, name: str, value: int, composition: Composition) -> Composition:
    """The same with a smaller size."""
    fields = getattr(composition, part)
    return replace(composition, **{part: {**fields, name: value}}) if fields.get(name, 0) > value else composition
