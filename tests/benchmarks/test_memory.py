"""What a step holds."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.memory import shard_bytes, states_budget_bytes


def test_shard_bytes_are_those_of_one_device() -> None:
    """What is split counts for a part of it, what is replicated for the whole."""
    mesh = jax.make_mesh((8,), ("fsdp",), devices=jax.devices()[:8])
    tree = {
        "split": jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=NamedSharding(mesh, P("fsdp"))),
        "whole": jax.ShapeDtypeStruct((5,), jnp.bfloat16, sharding=NamedSharding(mesh, P())),
    }
    assert shard_bytes(tree) == 2 * 3 * 4 + 5 * 2


def test_states_may_take_a_part_of_what_is_free() -> None:
    """A budget that is known is positive; where it is not known, nothing is said."""
    budget = states_budget_bytes()
    assert budget is None or budget > 0
