"""The meshes of each strategy that tests choose: those that are usual, the hardest of them, and the widest of all."""

from strategies import STRATEGIES, MeshSpec
from strategies.registry import distinct_meshes

SEVERAL = [name for name in STRATEGIES if name != "single"]
"""Strategies for more than one device."""
USUAL = {
    name: [mesh for n in (2, 4, 8) for mesh in distinct_meshes(name, n) if STRATEGIES[name].is_usual(mesh)]
    for name in SEVERAL
}
HARDEST = {name: max(meshes, key=lambda mesh: (mesh.size, len(mesh.axes))) for name, meshes in USUAL.items()}
"""Each strategy's usual mesh with most devices, and of those with most axes; the first of several.

Eight devices give the hardest case: stages of one layer, tables with most padding, the longest ring, the longest sums.
Two axes are unequal, so a strategy that confuses them fails.
"""
WIDEST = {
    name: max(strategy.meshes(8) or strategy.meshes(1), key=lambda mesh: len(mesh.axes))
    for name, strategy in STRATEGIES.items()
} | {"three_d": MeshSpec.parse("fsdp=2,pipeline=2,tensor=2")}
"""Each strategy's mesh over most axes, on eight devices where possible; for three_d, over the axes
that split weights.
"""
