"""Ways out in error messages: sizes that solve all problems at once, or all problems.

A check knows only its own problem, such as heads that the tensor axis does not divide. A plan with another size, or
without an option, tells whether everything fits.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import islice, product
from typing import Any

from strategies.config import OF_AXES, TrainConfig, without_idle
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible, WrongSize, divisors, one_of
from strategies.mesh import MeshSpec

MOST_PLANS = 1000
"""Upper bound on the plans made for a message."""
NAMES = {each.name for kind in (GPTConfig, TrainConfig) for each in fields(kind)}
"""Sizes of a model and options of a step, by name."""
Make = Callable[[GPTConfig, MeshSpec, TrainConfig], Any]
"""Makes a plan; raises Infeasible if model, mesh and batch do not fit together."""


def way_out(error: WrongSize, config: GPTConfig, mesh: MeshSpec, train: TrainConfig, make: Make) -> str:
    """The end of an error message: sizes that solve its problem and all others, or a smaller mesh that fits.

    The model, mesh and options are those asked for; `make` makes a plan of changed ones.
    """

    name, asked = error.subject, error.sizes

    def fits(spec: MeshSpec, **sizes: int) -> bool:
        try:
            make(_with(config, sizes), spec, _with(train, sizes))
        except Infeasible:
            return False
        return True

    def solves(size: int) -> bool:
        if name in mesh.sizes:
            return fits(MeshSpec(tuple((axis, size if axis == name else own) for axis, own in mesh.axes)))
        return name in NAMES and fits(mesh, **{name: size})

    if sizes := [size for size in islice(asked, MOST_PLANS) if solves(size)]:
        return one_of(sizes, name) + error.rest
    smaller = next(filter(fits, _smaller(mesh)), None)
    return f"mesh {smaller} fits" if smaller else f"{one_of(asked, name)}, but something else must change, too"


def other_problems(error: Infeasible, config: GPTConfig, mesh: MeshSpec, train: TrainConfig, make: Make) -> str:
    """The end of an error message about options: what else is refused, or which one to omit; often empty."""
    others = list[Infeasible]()
    for option in fields(TrainConfig):
        if getattr(train, option.name) == option.default or option.name not in (*OF_AXES, "attention"):
            continue
        try:
            make(config, mesh, without_idle(replace(train, **{option.name: option.default})))
        except Infeasible as other:
            others += [other] if other.alone != error.alone else []
        else:
            return f"; without {option.name} all else fits" if others else ""
    return f"; and {others[0]}" if others else ""


def _with(options: Any, sizes: dict[str, int]) -> Any:
    """A model or options with the given sizes, as far as it has them."""
    return replace(options, **{each.name: sizes[each.name] for each in fields(options) if each.name in sizes})


def _smaller(mesh: MeshSpec) -> list[MeshSpec]:
    """Meshes whose axes divide the given mesh's, most devices first, without axes of size one.

    Of more than `MOST_PLANS`, the largest and the smallest ones: if any fits, a small one is likely to.
    """
    names, sizes = zip(*mesh.axes, strict=True)
    chosen = (tuple(zip(names, parts, strict=True)) for parts in product(*map(divisors, sizes)))
    smaller = [MeshSpec(tuple(axis for axis in axes if axis[1] > 1) or axes[:1]) for axes in chosen]
    smaller.sort(key=lambda spec: -spec.size)
    half = MOST_PLANS // 2
    return smaller if len(smaller) <= MOST_PLANS else smaller[:half] + smaller[-half:]
