"""Default meshes, and the strategy for a mesh with axes that the named one lacks."""

import strategies
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.strategy import Strategy


def strategy_for(name: str, mesh: MeshSpec) -> str:
    """The strategy that a name stands for on a mesh, even if the mesh has axes that the named strategy lacks.

    It is the simplest hand-written strategy with the same placement along the named one's axes: `fsdp` with a tensor
    axis is `three_d`.

    >>> [strategy_for(name, MeshSpec.parse("fsdp=4,tensor=2")) for name in ("fsdp", "tensor", "auto")]
    ['three_d', 'three_d', 'auto']
    >>> strategy_for("fsdp", MeshSpec.parse("data=2,fsdp=4"))
    'hsdp'
    """
    strategy, axes = strategies.STRATEGIES[name], {*mesh.sizes}
    if axes <= {*strategy.axis_names}:
        return name
    taking = [each for each in strategies.STRATEGIES.values() if axes <= {*each.axis_names}]
    extending = [each for each in taking if {*strategy.axis_names} <= {*each.axis_names} and not each.twins]
    same = [each for each in extending if each.placement.along(strategy.axis_names) == strategy.placement]
    if not same:
        raise lacks_axis(name, mesh)
    return min(same, key=lambda each: len(each.axis_names)).name


def lacks_axis(name: str, mesh: MeshSpec) -> Infeasible:
    """The error for a strategy that lacks a mesh axis; it names the strategies that have all of them."""
    taking = [each.name for each in strategies.STRATEGIES.values() if {*mesh.sizes} <= {*each.axis_names}]
    others = f"which is one of {', '.join(taking)}" if taking else "and there is none yet"
    lacking = next(axis for axis in mesh.sizes if axis not in strategies.STRATEGIES[name].axis_names)
    return Infeasible(f"{name} has no axis {lacking}; mesh {mesh} takes a strategy with all of its axes, {others}")


def usual_mesh(strategy: Strategy, devices: int) -> MeshSpec:
    """The mesh of `devices` devices with the most of the strategy's usual axes; of those, the one nearest to a cube.

    >>> [str(usual_mesh(strategies.STRATEGIES[name], 64)) for name in ("fsdp", "hsdp", "three_d", "auto")]
    ['fsdp=64', 'data=8,fsdp=8', 'data=4,pipeline=4,tensor=4', 'fsdp=8,tensor=8']
    """
    meshes = [mesh for mesh in strategy.meshes(devices) if strategy.is_usual(mesh)]
    if not meshes:
        raise Infeasible(f"{strategy.name} has no mesh of {devices} devices; it has at most {strategy.most_devices:g}")
    return max(meshes, key=lambda mesh: (len(mesh.sizes), -max(mesh.sizes.values())))


def example_mesh(strategy: Strategy) -> MeshSpec:
    """A small mesh of a strategy's usual axes: four devices along a single axis, or two along each of several.

    >>> [str(example_mesh(strategies.STRATEGIES[name])) for name in ("single", "fsdp", "hsdp", "three_d", "auto")]
    ['data=1', 'fsdp=4', 'data=2,fsdp=2', 'data=2,pipeline=2,tensor=2', 'fsdp=2,tensor=2']
    """
    axes = max(strategy.twins, key=len, default=strategy.usual_axes or strategy.axis_names)
    size = int(min(4 if len(axes) == 1 else 2, strategy.most_devices))
    return MeshSpec(tuple((axis, size) for axis in axes))
