"""Restore a checkpoint as the state of any step."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np

from strategies.arguments import require_instance
from strategies.checkpoints import error_feedback, zarr_arrays
from strategies.checkpoints.canonical import Leaf, leaves
from strategies.checkpoints.info import INFO, CheckpointError, CheckpointInfo, damaged, local
from strategies.checkpoints.info import read as read_info
from strategies.checkpoints.saving import failure_of_last
from strategies.config import OptimizerName, TrainConfig
from strategies.core.matrices import moments_of
from strategies.gpt_config import GPTConfig
from strategies.model.gpt import resolved, weight_specs
from strategies.names import differences
from strategies.step import State, Step


def restore(step: Step, folder: str | Path, *, at: int | None = None) -> State:
    """Restore a state that any strategy saved, sharded as this step shards it.

    Each device reads its own shards. Quantisation errors of compressed gradients are dropped, with a warning, if this
    step keeps no such errors. A loss scale is restored only in float16; a float16 step starts with its `TrainConfig`'s
    if the checkpoint has none.

    It waits for a save that is still running. If that fails, its `Saving` and the next save raise the failure. This
    function then restores an older checkpoint, and warns if `at` does not name it.

    Args:
        step: the step that continues the training.
        folder: as `save` takes it.
        at: position of the checkpoint; default: the latest.

    Returns:
        The state, every array with the shape, dtype and sharding of `step.state`.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, of another model or optimizer, or of a newer format.
        Infeasible: `step` is not a `Step`.
    """
    require_instance(step, Step, "the step")
    failure = failure_of_last(local(folder))
    info = read_info(folder, at)
    if failure and at is None:
        warnings.warn(f"{failure}; the one of {info.position} is restored", RuntimeWarning, stacklevel=2)
    path = local(folder) / str(info.position)
    _require_same_model(path, info.config, step.config)
    _require_same_optimizer(path, info, step.train)
    keeps_errors = error_feedback.kept(info, step)
    found = leaves(step)
    lacking = [
        leaf
        for leaf in found
        if leaf.name not in (*info.scalars, *info.arrays) or (leaf.is_error_feedback and not keeps_errors)
    ]
    if torn := [leaf.name for leaf in lacking if leaf.dims]:
        raise damaged(path, f"{INFO} lacks {', '.join(torn)}")
    require_unchanged(path, info)
    fresh = initial(step, {leaf.name for leaf in lacking})

    def value(leaf: Leaf) -> jax.Array:
        if leaf.name in fresh:
            return fresh[leaf.name]
        if leaf.is_scalar:
            return _placed(leaf, info.scalars[leaf.name])
        if leaf.is_error_feedback and step.mesh.size != info.devices:
            return error_feedback.read(path, leaf, step.mesh.size, info)
        return zarr_arrays.read(path, leaf, info.chunk_checksums)

    try:
        values = zarr_arrays.on_threads(value, found)
    except (OSError, ValueError, OverflowError) as error:
        raise damaged(path, str(error)) from error
    return jax.tree.unflatten(jax.tree.structure(step.state), values)


def _require_same_model(path: Path, saved: GPTConfig, config: GPTConfig) -> None:
    """Refuse a checkpoint of another model. The padding of the vocabulary may differ, because it is not saved, and the
    factor of the loss of multi-token prediction, which training may lower.
    """
    found = (dataclasses.asdict(dataclasses.replace(resolved(each), vocab_multiple=1)) for each in (saved, config))
    before, now = ({**each, "mtp_loss": each["mtp_loss"] > 0} for each in found)
    if differs := differences(before, now):
        problem = f"the checkpoint {path} is of another model: {differs}"
        raise CheckpointError(f"{problem}; build the step with the saved configuration, read_info(FOLDER).config")


def _require_same_optimizer(path: Path, info: CheckpointInfo, train: TrainConfig) -> None:
    """Refuse a checkpoint of another optimizer, by the moments that it keeps."""
    saved = {name for name in info.arrays if name.startswith(("mu/", "nu/"))}
    specs, groups = weight_specs(info.config).items(), {"m": "mu", "v": "nu"}

    def moments(optimizer: OptimizerName) -> set[str]:
        options = dataclasses.replace(TrainConfig(1), optimizer=optimizer)
        return {f"{groups[moment]}/{name}" for name, spec in specs for moment in moments_of(spec, options)}

    of = [optimizer for optimizer in get_args(OptimizerName) if saved == moments(optimizer)]
    if of and train.optimizer not in of:
        problem = f"the checkpoint {path} is of optimizer={of[0]}, and the step has optimizer={train.optimizer}"
        raise CheckpointError(f"{problem}; build the step with optimizer={of[0]}")


def require_unchanged(path: Path, info: CheckpointInfo) -> None:
    """Refuse arrays whose metadata have changed since they were written. Format 1 has no checksums to detect this."""
    try:
        now = zarr_arrays.checksums(path, info.array_checksums)
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error
    if changed := [name for name, before in info.array_checksums.items() if now[name] != before]:
        raise damaged(path, f"{changed[0]}/zarr.json was changed after it was written")


def initial(step: Step, names: set[str]) -> dict[str, jax.Array]:
    """Arrays of the initial state, by leaf name. The compiler removes all others."""
    wanted = [leaf for leaf in leaves(step) if leaf.name in names]
    if not wanted:
        return {}

    def values(key: Any) -> list[jax.Array]:
        arrays = zip(leaves(step), jax.tree.leaves(step.init(key)), strict=True)
        return [array for leaf, array in arrays if leaf.name in names]

    arrays = jax.jit(values, out_shardings=[leaf.stored.sharding for leaf in wanted])(jax.random.key(0))
    return {leaf.name: array for leaf, array in zip(wanted, arrays, strict=True)}


def _placed(leaf: Leaf, number: float) -> jax.Array:
    scalar = np.asarray(number, leaf.stored.dtype)
    if scalar != number:
        raise ValueError(f"{leaf.name} is {number}, which {leaf.stored.dtype} cannot hold")
    return jax.make_array_from_callback((), leaf.stored.sharding, lambda _: scalar)
