"""The combination: data x pipeline x tensor (Narayanan et al. 2021, "PTD-P", section 3), by composing the three.

The tensor axis cuts every layer of a stage, the pipeline axis cuts the stack of layers, the two together cut the
vocabulary, and the data axis repeats it all for its part of the batch. The communication is that of data.py,
pipeline.py and tensor.py, each over its own axis and for the part of the batch and of the weights that is left.
"""

from jax.sharding import PartitionSpec as P

from strategies import data, pipeline, tensor
from strategies.assemble import assemble
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.step import Spread, Step, Strategy

AXES = ("data", "pipeline", "tensor")
VOCAB_AXES = ("pipeline", "tensor")
SPLIT = {**pipeline.SPLIT, **tensor.SPLIT, "vocab": VOCAB_AXES}


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """See `Strategy`. An axis that the mesh leaves out has size one."""
    device_mesh = mesh.over(AXES, devices)
    stages, tensors = mesh.sizes.get("pipeline", 1), mesh.sizes.get("tensor", 1)
    tensor.require_fit(config, train, tensors)
    pipe = pipeline.piped(config, train, stages)
    spread = Spread(
        spec=lambda dims: P(*map(SPLIT.get, dims)),
        batch_axes=data.AXES,
        vocab_shards=stages * tensors,
        places=pipe.places,
        hooks=tensor.hooks(VOCAB_AXES, train.sequence_parallel),
        differentiate=tensor.diverging(pipe.differentiate, config) if train.sequence_parallel else pipe.differentiate,
        enter=data.diverge,
        reduce=data.all_reduce,
    )
    return assemble(config, device_mesh, train, spread)


THREE_D = Strategy("three_d", AXES, build, (*pipeline.OPTIONS, *tensor.OPTIONS))
