"""Checks of callers' arguments to strategies and steps: Python and JAX values, not JSON."""

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from strategies.infeasible import Infeasible
from strategies.schema import Count, SchemaError, checked

T = TypeVar("T")
Inputs = ParamSpec("Inputs")
Output = TypeVar("Output", covariant=True)


class Jitted(jax.stages.Wrapped, Protocol[Inputs, Output]):
    """A function that `jax.jit` made: it can be called, traced and lowered."""

    def __call__(self, *args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        """Run it. The first call compiles it."""
        ...


def require_instance(value: Any, kind: type[T], what: str, error: type[Exception] = Infeasible) -> T:
    """Return a value after checking its class, such as `GPTConfig`. `what` names it in the message of `error`."""
    if not isinstance(value, kind):
        raise error(f"{what} is {described(value)}; pass a {kind.__name__}")
    return value


def described(value: Any) -> str:
    """A value in a few words: numbers, strings, classes and None as written, anything else by its type.

    >>> described("fsdp"), described({"blocks": 0}), described(np.zeros((2, 3), "int8"))
    ("'fsdp'", 'a dict', 'an array int8[2, 3]')
    """
    if value is None or isinstance(value, str | bytes | int | float | type):
        return reprlib.repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {value.dtype}{list(value.shape)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def require_functions(owner: Any) -> None:
    """Check the fields of a dataclass of functions: that a function takes as many arguments as its annotation says."""
    for name, kind in get_type_hints(type(owner)).items():
        value, what = getattr(owner, name), f"`{name}` of {type(owner).__name__}"
        functions = [each for each in (kind, *get_args(kind)) if get_origin(each) is Callable]
        if not functions:
            require_instance(value, kind, what, TypeError) if isinstance(kind, type) else checked(value, kind, what)
        elif value is not None or type(None) not in get_args(kind):
            _require_takes(value, len(get_args(functions[0])[0]), what)


def _require_takes(function: Any, count: int, what: str) -> None:
    """Check that a function can be called with a number of arguments."""
    needed = f"pass a function of {count} argument{'s' if count > 1 else ''}"
    if not callable(function):
        raise TypeError(f"{what} is {described(function)}; {needed}")
    with suppress(ValueError):  # some functions that are not Python's have no signature
        signature = inspect.signature(function)
        try:
            signature.bind(*range(count))
        except TypeError as error:
            raise TypeError(f"{what} takes {signature}; {needed}") from error


def require_count(value: Any, name: str) -> int:
    """Return a value after checking that it is a whole number of at least 1."""
    try:
        return checked(value, Count, name)
    except SchemaError:
        raise Infeasible(f"{name}={reprlib.repr(value)}; it must be a whole number of at least 1") from None


def require_like(given: Any, expected: Any, what: str) -> None:
    """Check that a tree of arrays or tracers has the step's names, shapes and dtypes. `what` names it in messages."""
    way_out = "pass what this step made or placed"
    if jax.tree.structure(given) != jax.tree.structure(expected):
        if not isinstance(given, type(expected)):
            raise Infeasible(f"{what} is {described(given)}, not {described(expected)}; {way_out}")
        names, own = (_names(tree) for tree in (given, expected))
        lacking, surplus = [name for name in own if name not in names], [name for name in names if name not in own]
        differs = f"lacks {lacking[0]}" if lacking else f"has {surplus[0]}" if surplus else "has others"
        raise Infeasible(f"{what} does not have this step's arrays: it {differs}; {way_out}")
    for (path, array), other in zip(jax.tree.leaves_with_path(given), jax.tree.leaves(expected), strict=True):
        if (np.shape(array), jax.dtypes.result_type(array)) != (other.shape, other.dtype):
            name = f"{what}{jax.tree_util.keystr(path)}"
            found = f"{jax.dtypes.result_type(array)}{list(np.shape(array))}"
            raise Infeasible(f"{name} is {found}, not {other.dtype}{list(other.shape)}; {way_out}")


def require_placed(given: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Check that arrays or tracers on devices are sharded as the step's; host arrays are placed later."""
    for array, own in zip(given, expected, strict=True):
        if not isinstance(array, jax.Array) or isinstance(array, Tracer) or array.sharding == own.sharding:
            continue
        if array.committed and not array.sharding.is_equivalent_to(own.sharding, array.ndim):
            differs = f"an array is {_placement(array)}, and this step takes {_placement(own)}"
            way_out = "save it, and restore it for this step (strategies.checkpoints)"
            raise Infeasible(f"{what} is placed differently: {differs}; {way_out}")


def _names(tree: Any) -> list[str]:
    """Names of a tree's arrays, as in Python expressions."""
    return [jax.tree_util.keystr(path)[:100] for path, _ in jax.tree.leaves_with_path(tree)]


def _placement(array: Any) -> str:
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding):
        return f"on {len(sharding.device_set)} devices"
    sizes = ",".join(f"{name}={size}" for name, size in sharding.mesh.shape.items() if size > 1)
    return f"{sharding.spec} on the mesh {sizes or 'of one device'}".replace("PartitionSpec", "P")


def require_present(tree: Any, what: str) -> None:
    """Check that no array of a tree is deleted, because a JAX call with a deleted array may end the process."""
    arrays = (each for each in jax.tree.leaves(tree) if isinstance(each, jax.Array) and not isinstance(each, Tracer))
    if any(array.is_deleted() for array in arrays):
        problem = f"arrays of {what} are deleted, as a step deletes the state that it takes"
        raise Infeasible(f"{problem}; use the state that the step returned")


def require_key(key: Any) -> None:
    """Check that a key comes from `jax.random.key` or `jax.random.PRNGKey`."""
    legacy = getattr(key, "dtype", None) == jnp.uint32 and key.ndim == 1
    typed = isinstance(key, jax.Array) and key.ndim == 0 and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not legacy and not typed:
        raise Infeasible(f"the key is {reprlib.repr(key)}; pass one, such as jax.random.key(0)")


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
    """A jitted function that calls `require` with its arguments before each call, before JAX sees them."""
    return _Guarded(function, require)


def jitted(
    mesh: Mesh,
    mode: str,
    function: Callable,
    inputs: Mapping[str, Any],
    outputs: Any,
    donate_argnums: tuple[int, ...] = (),
) -> Any:
    """Jit a function over a mesh, in a mode of `Implementation.mode`.

    It raises Infeasible for deleted arrays, and for arguments whose shapes differ from `inputs`, by name.
    """
    specs = jax.tree.map(lambda array: array.sharding.spec, tuple(inputs.values()))
    if mode == "auto":
        mapped = function
    elif mode == "explicit":
        mapped = with_explicit_axes(function, mesh, specs)
    else:
        mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=outputs)

    @wraps(function)
    def checked(*given: Any) -> Any:
        for arrays, (name, expected) in zip(given, inputs.items(), strict=True):
            require_like(arrays, expected, f"the {name}")
        return mapped(*given)

    def require(*given: Any) -> None:
        for arrays, name in zip(given, inputs, strict=True):
            require_present(arrays, f"the {name}")

    # These shardings equal `init`'s. Otherwise the second step would be compiled again.
    out_shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), outputs)
    return guarded(jax.jit(checked, out_shardings=out_shardings, donate_argnums=donate_argnums), require)


def with_explicit_axes(function: Callable, mesh: Mesh, specs: Any) -> Callable:
    """A function inside which the axes of a mesh are explicit. Outside they are not, so states are as of any step."""
    inside = jax.sharding.explicit_axes(function, in_sharding=specs)

    def run(*given: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return inside(*given)

    return run
