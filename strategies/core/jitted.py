"""The jitted functions of a step, which check their arguments."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from strategies.arguments import require_like, require_present


class _Guarded:
    """A jitted function that checks its arguments at each call. It has all attributes of the function."""

    def __init__(self, function: Any, require: Callable[..., None]) -> None:
        self._function, self._require = function, require

    def __call__(self, *given: Any) -> Any:
        self._require(*given)
        return self._function(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def guarded(function: Any, require: Callable[..., None]) -> Any:
    """A jitted function that calls `require` with its arguments first, at each call, before JAX sees them."""
    return _Guarded(function, require)


def jitted(
    mesh: Mesh,
    partitioned: bool,
    function: Callable,
    inputs: Mapping[str, Any],
    outputs: Any,
    donate_argnums: tuple[int, ...] = (),
) -> Any:
    """Jit a function over a mesh: in `jax.shard_map`, or on whole arrays that the compiler partitions.

    It raises Infeasible for deleted arrays, and for arguments of other shapes than those of `inputs`, which are by
    name.
    """
    specs = jax.tree.map(lambda array: array.sharding.spec, tuple(inputs.values()))
    mapped = function if partitioned else jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=outputs)

    @wraps(function)
    def checked(*given: Any) -> Any:
        for arrays, (name, expected) in zip(given, inputs.items(), strict=True):
            require_like(arrays, expected, f"the {name}")
        return mapped(*given)

    def require(*given: Any) -> None:
        for arrays, name in zip(given, inputs, strict=True):
            require_present(arrays, f"the {name}")

    # The shardings equal those of `init`. Otherwise the second step would be compiled again.
    out_shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), outputs)
    return guarded(jax.jit(checked, out_shardings=out_shardings, donate_argnums=donate_argnums), require)
