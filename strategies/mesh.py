"""MeshSpec: a mesh as named axis sizes, spelled the same in test ids, records, plots and errors.

This module needs no JAX. backends/device_mesh.py makes a `jax.sharding.Mesh` from a spec.
"""

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from strategies.infeasible import Infeasible, divisors
from strategies.schema import require_types

_axes = ["data", "fsdp", "pipeline", "context", "expert", "tensor"]


def all_axes() -> tuple[str, ...]:
    """All mesh axes, outermost first. Inner axes communicate most and belong on the fastest links."""
    return tuple(_axes)


def add_axes(names: Iterable[str]) -> None:
    """Add a strategy's mesh axes, outermost first. Each goes before the next existing name, or innermost."""
    names = tuple(dict.fromkeys(names))
    new, known = [name for name in names if name not in _axes], [name for name in names if name in _axes]
    if known != sorted(known, key=_axes.index):
        raise ValueError(f"axes {', '.join(known)} are out of order; the order is {', '.join(_axes)}")
    for name in new:
        if not re.fullmatch("[a-z]+", name) or name == "several":
            raise ValueError(f"{name!r} cannot be a mesh axis; use lower-case letters only, and not 'several'")
    for name in new:
        later = [other for other in names[names.index(name) :] if other in _axes]
        _axes.insert(_axes.index(later[0]) if later else len(_axes), name)


MOST_SIZE = 999_999_999
"""The largest size of a mesh axis."""
Devices = Sequence[Any]
"""A sequence of `jax.Device`, which type checkers do not accept as a class."""


@dataclass(frozen=True)
class MeshSpec:
    """Named sizes such as `data=2,tensor=4`, in the order of `all_axes`; parse and print are inverse.

    Raises:
        Infeasible: an axis is unknown, repeated or out of order, or a size is not a whole number of at least one.
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.axes, tuple | list):
            raise Infeasible(f"axes={reprlib.repr(self.axes)}; write a mesh as MeshSpec.parse('data=2,tensor=4')")
        require_types(self, Infeasible)
        names, legal = [name for name, _ in self.axes], all_axes()
        if not names:
            raise Infeasible(f"a mesh needs an axis; write one as data=2,tensor=4 with axes of {', '.join(legal)}")
        for name, size in self.axes:
            if name not in legal:
                raise Infeasible(f"unknown mesh axis {name!r}; it can be {', '.join(legal)}")
            if not 1 <= size <= MOST_SIZE:
                raise Infeasible(f"mesh axis {name}={size}; it must be from 1 to {MOST_SIZE:,}")
        if names != sorted(set(names), key=legal.index):
            problem = f"mesh axes {', '.join(names)} repeat or are out of order"
            raise Infeasible(f"{problem}; the order is {', '.join(legal)}")

    @classmethod
    def parse(cls, text: str) -> "MeshSpec":
        """Parse a mesh from a string. `str` is the inverse.

        Raises:
            Infeasible: it does not have the form name=size,name=size, or is not a valid mesh.

        Examples:
            >>> str(MeshSpec.parse("data=2,pipeline=2,tensor=2"))
            'data=2,pipeline=2,tensor=2'
        """
        if not isinstance(text, str):
            raise Infeasible(f"mesh {reprlib.repr(text)}; pass a MeshSpec, or a string such as 'data=2,tensor=4'")
        parts = [re.fullmatch(r"([a-z]+)=([0-9]{1,9})", part) for part in text.split(",")]
        if not all(parts):
            raise Infeasible(f"mesh {reprlib.repr(text)} cannot be read; write it as data=2,tensor=4")
        return cls(tuple((part[1], int(part[2])) for part in parts if part))

    @classmethod
    def of(cls, mesh: "MeshSpec | str") -> "MeshSpec":
        """Return a `MeshSpec` unchanged, or parse a string.

        Raises:
            Infeasible: the string cannot be parsed, or the argument has another type.
        """
        return mesh if isinstance(mesh, MeshSpec) else cls.parse(mesh)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Name of each axis -> its size."""
        return MappingProxyType(dict(self.axes))

    @property
    def size(self) -> int:
        """Devices in the mesh."""
        return math.prod(size for _, size in self.axes)

    def split_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """The given axes whose size is above one.

        Examples:
            >>> MeshSpec.parse("data=1,tensor=4").split_axes(("data", "fsdp", "tensor"))
            ('tensor',)
        """
        return tuple(axis for axis in axes if self.sizes.get(axis, 1) > 1)


def factorisations(axes: Sequence[str], devices: int) -> Iterator[MeshSpec]:
    """Every mesh of exactly `devices` devices over some of the axes, without axes of size one.

    For one device it is the first axis with size one.

    >>> [str(mesh) for mesh in factorisations(("data", "tensor"), 4)]
    ['tensor=4', 'data=2,tensor=2', 'data=4']
    """

    def cut(names: Sequence[str], left: int) -> Iterator[tuple[tuple[str, int], ...]]:
        if not names:
            yield from [()] if left == 1 else []
            return
        for size in divisors(left):
            first = ((names[0], size),) if size > 1 else ()
            yield from (first + rest for rest in cut(names[1:], left // size))

    if devices == 1:
        yield MeshSpec(((axes[0], 1),))
    else:
        yield from map(MeshSpec, cut(axes, devices))
