"""Whether two collectives of one program may be in flight at once on a virtual CPU device, where that can deadlock.

XLA's CPU runtime runs what does not depend on each other side by side, in a pool of as many threads as there are
devices. A collective holds its thread until every device of its group has come. The next collective of the program
starts when the one before has ended; but a loop, a conditional or a call counts as started as soon as its first part
runs in another thread (`NodeEdge::Kind::kScheduling`, execution_graph.h). A later collective that does not depend on it
may then wait beside the one inside. With two waiting on each device the pool has no thread for the device that all
others wait for. With one there is always a thread, for the device that is last waits in none.

A collective and a later loop are in order only in a program that was compiled by the process that runs it, and not in
one that it read from JAX's persistent cache, which is therefore not used (`machine.compile_anew`).

The compiler chooses the order of instructions that do not depend on each other, and chooses otherwise with other sizes
and versions. So each step is held to this law at the sizes that it was compiled for. Where a strategy can make one
collective need the other, it does (`fsdp.head_first`).
"""

import operator
from collections.abc import Mapping, Sequence
from functools import reduce

from jax.sharding import Mesh

from benchmarks.failures import MayDeadlock
from benchmarks.program.collectives import kind_of
from benchmarks.program.hlo import Computation, Instruction, Module
from strategies.mesh import are_virtual

_CALLS = (
    "body",
    "condition",
    "to_apply",
    "calls",
    "called_computations",
    "branch_computations",
    "true_computation",
    "false_computation",
)


def require_no_deadlock(mesh: Mesh, concurrent: Sequence[tuple[str, str]]) -> None:
    """Refuse a program of a mesh that has such pairs of collectives, where that can deadlock.

    Raises:
        MayDeadlock: names the first pair.
    """
    if concurrent and are_virtual(mesh.devices.ravel()):
        first, later = concurrent[0]
        problem = f"%{later} communicates beside %{first}, and {len(concurrent) - 1} more such pairs"
        raise MayDeadlock(f"{problem}: virtual CPU devices may wait for each other forever; make one need the other")


def concurrent_collectives(module: Module) -> list[tuple[str, str]]:
    """Pairs of instructions whose collectives may be in flight together, by name.

    The first is a loop, conditional or call that communicates inside; the second communicates later in the program, and
    does not depend on the first.
    """
    communicates: dict[str, bool] = {}
    pairs = []
    for computation in module.computations.values():  # those called come before those that call them
        involved = [each for each in computation.instructions.values() if _communicates(each, communicates)]
        communicates[computation.name] = bool(involved)
        # A plain collective has ended before the next one starts.
        lasting = [(index, each.name) for index, each in enumerate(involved) if kind_of(each) is None]
        needs = _needs(computation, [name for _, name in lasting])
        for bit, (index, name) in enumerate(lasting):
            pairs += [(name, later.name) for later in involved[index + 1 :] if not needs[later.name] >> bit & 1]
    return pairs


def _communicates(instruction: Instruction, communicates: Mapping[str, bool]) -> bool:
    called = (name for attribute in _CALLS for name in instruction.computations(attribute))
    return kind_of(instruction) is not None or any(communicates.get(name) for name in called)


def _needs(computation: Computation, lasting: Sequence[str]) -> dict[str, int]:
    """Of each instruction, which of the lasting ones must have run before it: a bit for each."""
    bits = {name: 1 << index for index, name in enumerate(lasting)}
    needs: dict[str, int] = {}
    for instruction in computation.instructions.values() if lasting else ():
        before = (needs[name] | bits.get(name, 0) for name in instruction.operands if name in needs)
        needs[instruction.name] = reduce(operator.or_, before, 0)
    return needs
