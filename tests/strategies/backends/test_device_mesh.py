"""What arrays on a mesh keep."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from strategies.backends.device_mesh import barrier, mark_varying


def test_arrays_behind_a_barrier_vary_over_the_same_axes_as_before() -> None:
    """Values are equal, too. `jax.shard_map` refuses a result that varies over more axes than its spec says."""
    seen: list[frozenset[str]] = []

    def body(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        tree = {"both": x, "first": lax.psum(x, "tensor"), "none": mark_varying(jnp.arange(2.0), ())}
        out = barrier(tree)
        seen.extend(frozenset(jax.typeof(out[name]).manual_axis_type.varying) for name in tree)
        return out["both"], out["first"], out["none"]

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "tensor"))
    both, first, none = jax.shard_map(
        body, mesh=mesh, in_specs=P("data", "tensor"), out_specs=(P("data", "tensor"), P("data"), P())
    )(jnp.arange(4.0).reshape(2, 2))
    assert seen[:3] == [{"data", "tensor"}, {"data"}, frozenset()]
    assert (both.tolist(), first.tolist(), none.tolist()) == ([[0, 1], [2, 3]], [[1], [5]], [0, 1])
