"""A Hugging Face folder as the state of any step, and a checkpoint as a folder."""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from strategies.arguments import described, require_instance
from strategies.checkpoints import read_info, zarr_arrays
from strategies.checkpoints.canonical import Index, Leaf, assembled, leaves
from strategies.checkpoints.info import damaged, local
from strategies.checkpoints.restoring import initial, require_unchanged
from strategies.config import Dtype
from strategies.files import read_json
from strategies.gpt_config import GPTConfig
from strategies.huggingface import safetensors, tensors
from strategies.huggingface.config_json import HuggingFaceError, config_of, differences, facts_of, kept_by
from strategies.huggingface.family import Family
from strategies.schema import checked
from strategies.step import State, Step

CONFIG, FILE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
NO_WEIGHT = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$")
"""Suffixes of tensors that older versions of transformers wrote, and that the configuration determines."""
OF_MODELS = "name a folder of a model of Hugging Face, with config.json and safetensors"
METADATA = "huggingface"
"""The field of a checkpoint's metadata with `Pretrained.kept`, which `write` writes again."""
MOST_FILE_BYTES = 5 * 10**9
"""Upper bound on a written file, as in transformers, unless a single tensor is larger."""
MOST_TILE_BYTES = 2**26
"""How many bytes of a weight are copied from a checkpoint at a time."""


@dataclass(frozen=True)
class Pretrained:
    """A folder's model, with its weights mapped into memory: a device's part is read when it is needed.

    Attributes:
        folder: its path.
        family: of its `config.json`.
        config: the model. Its `sequence` is the longest that it supports; a step may have a shorter one if positions
            are rotary.
        tensors: by name.
        kept: fields of `config.json` that no step uses: the numbers of special tokens, and the longest sequence, which
            that of a step may be shorter than.
    """

    folder: Path
    family: Family
    config: GPTConfig
    tensors: Mapping[str, np.ndarray]
    kept: Mapping[str, Any]

    def require_same(self, config: GPTConfig) -> None:
        """Refuse another model. A shorter sequence and other losses and capacity of experts are allowed.

        Raises:
            HuggingFaceError: it differs; the message names both.
        """
        but = ["sequence"] if self.family.is_rotary and config.sequence <= self.config.sequence else []
        if differs := differences(self.config, config, but):
            own = differences(config, self.config, but)
            raise HuggingFaceError(f"{self.folder / CONFIG} has {_some(own, 5)}, which cannot be {_some(differs, 5)}")

    def state(self, step: Step) -> State:
        """The state of a step before its first update, with the weights of the folder.

        They become float32, and then the step's dtypes. Each device reads its own shards.

        Raises:
            HuggingFaceError: the step is of another model, or a weight is not finite.
        """
        self.require_same(require_instance(step, Step, "the step").config)
        layouts, found = tensors.layouts(step.config, self.family), leaves(step)
        fresh = initial(step, {leaf.name for leaf in found if not leaf.name.startswith("params/")})

        def array(leaf: Leaf) -> jax.Array:
            def fill(values: np.ndarray, pieces: Iterator[tuple[Index, Index]]) -> None:
                try:
                    for there, here in pieces:
                        layouts[leaf.name.removeprefix("params/")].read(self.tensors, there, values[here])
                except HuggingFaceError as error:
                    raise HuggingFaceError(f"{self.folder}: {error}") from error

            return fresh[leaf.name] if leaf.name in fresh else assembled(leaf, fill)

        return jax.tree.unflatten(jax.tree.structure(step.state), [array(leaf) for leaf in found])


def read(folder: str | Path) -> Pretrained:
    """Read the configuration and the headers of a folder; the weights stay on disk.

    Raises:
        HuggingFaceError: its model is not supported, or a tensor is missing, unknown, or of another shape.
        SchemaError: a file is missing or invalid.
    """
    folder = _path(folder)
    facts = _facts(folder / CONFIG)
    family, config = config_of(facts, str(folder / CONFIG))
    expected = tensors.shapes(tensors.layouts(config, family))
    there = {name: tensor for name, tensor in _tensors(folder).items() if not NO_WEIGHT.search(name)}
    head, table = family.tensors["head.token_VD"], family.tensors["embedding.token_VD"]
    if not family.is_rotary and table not in there:  # as in released GPT-2
        there = {name if name == head else f"transformer.{name}": tensor for name, tensor in there.items()}
    if config.tied and head in there and table in there and _equal(there[head], there[table]):
        del there[head]
    for name in _copies_of_tables(config, there):
        del there[name]
    if missing := [name for name in expected if name not in there]:
        block = f"model.layers.{config.layers}."  # transformers saves a folder without the block, but with its number
        way_out = "; set num_nextn_predict_layers to 0" if all(name.startswith(block) for name in missing) else ""
        raise HuggingFaceError(f"{folder} lacks {len(missing):,} tensors of {CONFIG}: {_some(missing)}{way_out}")
    if surplus := [name for name in there if name not in expected]:
        raise HuggingFaceError(f"{folder} has {len(surplus):,} tensors that no weight of {CONFIG} is: {_some(surplus)}")
    for name, shape in expected.items():
        if there[name].shape != shape:
            problem = f"{name} has shape {list(there[name].shape)}, and {CONFIG} says {list(shape)}"
            raise HuggingFaceError(f"{folder}: {problem}")
    return Pretrained(folder, family, config, there, {name: facts[name] for name in kept_by(family) if name in facts})


def _copies_of_tables(config: GPTConfig, there: Mapping[str, np.ndarray]) -> list[str]:
    """Tensors of the MTP block that are tables of the model, as in released folders of DeepSeek-V3."""
    block = f"model.layers.{config.layers}"
    tables = {f"{block}.embed_tokens": "model.embed_tokens", f"{block}.shared_head.head": "lm_head"}
    named = {f"{copy}.weight": f"{table}.weight" for copy, table in tables.items()} if config.mtp else {}
    both = ((copy, table) for copy, table in named.items() if copy in there and table in there)
    return [copy for copy, table in both if _equal(there[copy], there[table])]


def _path(folder: Any) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise HuggingFaceError(f"the folder is {described(folder)}; pass a path (str or Path)")
    return Path(folder)


def _facts(path: Path) -> dict[str, Any]:
    return checked(read_json(path, OF_MODELS), dict[str, Any], str(path))


def _tensors(folder: Path) -> dict[str, np.ndarray]:
    if not (folder / INDEX).exists():
        return safetensors.opened(folder / FILE)
    files = checked(_facts(folder / INDEX).get("weight_map"), dict[str, str], f"{folder / INDEX}: weight_map")
    if away := [name for name in files.values() if Path(name).name != name]:
        raise HuggingFaceError(f"{folder / INDEX} has the file {away[0]!r}, which is not in the folder")
    parts = {name: safetensors.opened(folder / name) for name in {*files.values()}}
    if lacking := [name for name, file in files.items() if name not in parts[file]]:
        raise HuggingFaceError(f"{folder / INDEX}: {files[lacking[0]]} lacks {_some(lacking)}")
    return {name: parts[file][name] for name, file in files.items()}


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two tables are equal, row by row."""
    return one.shape == other.shape and all(map(np.array_equal, one, other))


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def write(folder: str | Path, checkpoints: str | Path, *, at: int | None = None, dtype: Dtype = "float32") -> None:
    """Write the weights of a checkpoint as a folder, which `transformers` loads.

    Its metadata has `Pretrained.kept` as `METADATA` if the weights came from a folder; these fields are written again.

    Args:
        folder: to create. It appears only once it is complete.
        checkpoints: the folder of checkpoints.
        at: position of the checkpoint; default: the latest.
        dtype: of the tensors.

    Raises:
        HuggingFaceError: the folder is not empty, no family of transformers has the model, or the dtype is not
            supported.
        CheckpointError: the checkpoint cannot be read.
        OSError: the folder cannot be written.
    """
    if dtype not in safetensors.DTYPES.values():
        raise HuggingFaceError(f"dtype={described(dtype)}; it can be {', '.join(safetensors.DTYPES.values())}")
    info, folder = read_info(checkpoints, at), _path(folder)
    path = local(checkpoints) / str(info.position)
    require_unchanged(path, info)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HuggingFaceError(f"{folder} has something in it already; name another folder")
    family, facts = facts_of(info.config, dtype)
    kept = checked(info.metadata.get(METADATA, {}), dict[str, Any], f"{path}: metadata: {METADATA}")
    facts |= {name: kept[name] for name in kept_by(family) if name in kept}
    layouts = tensors.layouts(info.config, family)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".meshmark-", dir=folder.parent) as beside:
        part = Path(beside, folder.name)
        part.mkdir()
        there = _created(part, tensors.shapes(layouts), dtype)
        for name, layout in layouts.items():
            for index, values in _tiles(path, name, layout.shape, info.chunk_checksums):
                layout.write(there, index, values)
        (part / CONFIG).write_text(json.dumps(facts, indent=2) + "\n")
        part.rename(folder)


def _created(folder: Path, shapes: Mapping[str, tuple[int, ...]], dtype: Dtype) -> dict[str, np.ndarray]:
    """Create the files of all tensors: one, or several of at most `MOST_FILE_BYTES` with an index."""
    files: list[dict[str, tuple[int, ...]]] = [{}]
    total = held = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * jnp.dtype(dtype).itemsize
        if files[-1] and held + size > MOST_FILE_BYTES:
            files, held = [*files, {}], 0
        files[-1][name], held, total = shape, held + size, total + size
    if len(files) == 1:
        return safetensors.created(folder / FILE, shapes, dtype)
    named = {f"model-{number:05}-of-{len(files):05}.safetensors": part for number, part in enumerate(files, 1)}
    index = {"metadata": {"total_size": total}, "weight_map": {name: file for file in named for name in named[file]}}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    parts = [safetensors.created(folder / file, part, dtype) for file, part in named.items()]
    return {name: tensor for part in parts for name, tensor in part.items()}


def _tiles(
    checkpoint: Path, name: str, shape: tuple[int, ...], digests: Mapping[str, str]
) -> Iterator[tuple[Index, np.ndarray]]:
    """The ranges of a weight in a checkpoint and their values, in order, at most `MOST_TILE_BYTES` each."""
    steps, below = [], 1
    for size in reversed(shape):
        steps.insert(0, max(1, min(size, MOST_TILE_BYTES // 4 // below)))
        below *= size
    try:
        store = zarr_arrays.open_array(checkpoint, f"params/{name}", digests)
        for starts in product(*map(range, [0] * len(shape), shape, steps)):
            places = zip(starts, steps, shape, strict=True)
            index = tuple(slice(start, min(start + step, size)) for start, step, size in places)
            yield index, store[index].read().result()
    except (OSError, ValueError) as error:
        raise damaged(checkpoint, str(error)) from error
