"""Functions on the devices of a context axis."""

import jax
from jax.sharding import PartitionSpec as P

from strategies import MeshSpec
from strategies.backends.device_mesh import device_mesh

WHOLE, SPLIT = P(), P("context")


def around(function, devices, outputs=WHOLE):
    """Map a function over the devices of a ring, to each of which whole arrays are passed."""
    mesh = device_mesh(MeshSpec.parse(f"context={devices}"), ("context",), jax.devices()[:devices])
    return jax.shard_map(function, mesh=mesh, in_specs=WHOLE, out_specs=outputs, check_vma=False)
