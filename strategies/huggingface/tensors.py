"""Which tensors of a Hugging Face folder hold a model's weights, and their layout.

Here a weight is one array for all layers and experts, and queries, keys and values are together, by KV head. A folder
has a tensor for each layer, expert and projection, and most matrices are [out, in]. A `Block` is a range of a weight
that is a view of a tensor: through it any range of the weight is read or written, without other elements.

Latent attention rotates feature i of a head with feature i + R/2 here, and with feature i + 1 in a folder, where the
matrices that compute keys and values from latents are one matrix.

Dims: J KV heads, G queries per KV head, K head dim, R rotary features.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from strategies.checkpoints.canonical import Index
from strategies.gpt_config import GPTConfig
from strategies.huggingface.config_json import HuggingFaceError
from strategies.huggingface.family import Family
from strategies.model.block import part_and_layer
from strategies.model.gpt import weight_specs

Tensors = Mapping[str, np.ndarray]
AS_HERE = "vocab", "sequence", "experts"
"""First dims of weights that are not used as [in, out] by a single matmul: they are stored as here."""
OF_LATENTS = "query_features", "latents_and_key", "plain_key_features", "head_features"
"""Last dims of matrices of latent attention whose rows a folder has in another order."""


class Block(NamedTuple):
    """A range of a weight that one tensor has.

    Attributes:
        place: the range, one slice for each dim of the weight.
        view: from the tensor to its part in the shape and the order of the range, without a copy.
    """

    place: Index
    tensor: str
    shape: tuple[int, ...]
    view: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Layout:
    """The tensors of a folder that hold a weight.

    Attributes:
        shape: of the weight, without padding.
        is_stacked: whether its first dim is layers, of the blocks or of the leading dense layers.
        layers: the blocks of each layer; a single list if the weight is not stacked.
    """

    shape: tuple[int, ...]
    is_stacked: bool
    layers: list[list[Block]]

    def read(self, tensors: Tensors, index: Index, values: np.ndarray) -> None:
        """Read a range of the weight into an array of its shape."""
        for tensor, ours, theirs in self._pairs(tensors, index, values):
            if not (finite := np.isfinite(theirs)).all():
                problem = f"{tensor} has {theirs[~finite].flat[0]} among its weights"
                raise HuggingFaceError(f"{problem}; name a folder whose weights are finite")
            ours[...] = theirs

    def write(self, tensors: Tensors, index: Index, values: np.ndarray) -> None:
        """Write a range of the weight into the tensors."""
        for _, ours, theirs in self._pairs(tensors, index, values):
            theirs[...] = ours

    def _pairs(
        self, tensors: Tensors, index: Index, values: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Names of tensors, and views of equal elements of the array and of the tensor."""
        for block in chain.from_iterable(self.layers[index[0]] if self.is_stacked else self.layers):
            ranges = [_overlap(*pair) for pair in zip(index, block.place, strict=True)]
            if all(part.start < part.stop for part in ranges):
                theirs = block.view(tensors[block.tensor])
                yield block.tensor, values[_within(ranges, index)], theirs[_within(ranges, block.place)]


def layouts(config: GPTConfig, family: Family) -> dict[str, Layout]:
    """The layout of each weight of a model, by name."""
    found, sizes = {}, config.dim_sizes
    for name, spec in weight_specs(config).items():
        group, *part = name.replace("lead.", "blocks.", 1).replace("mtp.block.", "blocks.", 1).split(".", 2)
        part[0], turn = part_and_layer(part[0])
        template = family.tensors.get(".".join((group, *part)))
        if template is None:
            raise HuggingFaceError(f"{family.model_type} of Hugging Face has no tensor for the weight {name}")
        count, dims = (sizes[spec.dims[0]], spec.dims[1:]) if spec.is_layered else (1, spec.dims)
        first = turn + {"layers": config.dense_layers, "mtp_layers": config.layers}.get(spec.dims[0], 0)
        layers = [
            [
                block._replace(place=(slice(layer, layer + 1), *block.place), view=partial(_deeper, block.view))
                if spec.is_layered
                else block
                for block in _blocks(config, family, dims, template.replace("{layer}", str(number)))
            ]
            for layer, number in enumerate(range(first, first + count * config.layers_in_block, config.layers_in_block))
        ]
        found[name] = Layout(tuple(sizes[dim] for dim in spec.dims), spec.is_layered, layers)
    return found


def shapes(found: Mapping[str, Layout]) -> dict[str, tuple[int, ...]]:
    """A model's tensors by name, in order, with their shapes."""
    return {block.tensor: block.shape for layout in found.values() for layer in layout.layers for block in layer}


def _blocks(config: GPTConfig, family: Family, dims: tuple[str, ...], name: str) -> Iterator[Block]:
    """The blocks of one layer of a weight. `name` is as in `Family.tensors`, with the layer filled in."""
    sizes = [config.dim_sizes[dim] for dim in dims]
    whole = tuple(slice(0, size) for size in sizes)
    tensor, _, start = name.removesuffix("::2]").partition("[")
    if "{expert}" in name:
        for expert in range(sizes[0]):
            for block in _blocks(config, family, dims[1:], name.replace("{expert}", str(expert))):
                place = slice(expert, expert + 1), *block.place
                yield block._replace(place=place, view=partial(_deeper, block.view))
    elif start:
        yield Block(whole, tensor, (*sizes[:-1], 2 * sizes[-1]), partial(_every_second, int(start)))
    elif dims[-2:-1] in (("qkv",), ("qk",)):
        yield from _projections(config, family, sizes, name)
    elif len(dims) == 2 and dims[1] in OF_LATENTS:
        yield from _rows(config, dims, name)
    elif family.linear and len(dims) == 2 and dims[0] not in AS_HERE:
        yield Block(whole, name, (sizes[1], sizes[0]), np.transpose)
    else:
        yield Block(whole, name, tuple(sizes), np.asarray)


def _rows(config: GPTConfig, dims: tuple[str, ...], name: str) -> Iterator[Block]:
    """Blocks of a matrix of latent attention, [in, out]: ranges of the rows of its tensor [out, in], in our order."""
    size, latents, rotary = config.dim_sizes[dims[0]], config.latent_rank or 0, config.rotary_size or 0
    heads, value, plain = config.heads, config.value_dim, config.head_dim - rotary

    def with_rotary(start: int, count: int) -> list[slice]:
        """Rows of features without and with a position; of the latter the even ones are first."""
        first, last = start + count, start + count + rotary
        return [slice(start, first), slice(first, last, 2), slice(first + 1, last, 2)]

    if dims[1] == "latents_and_key":
        rows, parts = latents + rotary, with_rotary(0, latents)
    elif dims[1] == "query_features":
        rows = heads * config.head_dim
        parts = [part for start in range(0, rows, config.head_dim) for part in with_rotary(start, plain)]
    else:
        rows = heads * (plain + value)
        first, last = (0, plain) if dims[1] == "plain_key_features" else (plain, plain + value)
        parts = [slice(start + first, start + last) for start in range(0, rows, plain + value)]
    at = 0
    for part in parts:
        count = len(range(rows)[part])
        yield Block((slice(0, size), slice(at, at + count)), name, (rows, size), partial(_columns, part))
        at += count


def _projections(config: GPTConfig, family: Family, sizes: list[int], name: str) -> Iterator[Block]:
    """Blocks of queries, keys and values: here [..., G + 2, J x K]; in a folder [J x G x K, ...] and [J x K, ...]."""
    *others, count, features = sizes
    whole = tuple(slice(0, size) for size in others)
    if not family.linear:
        yield Block(
            (*whole, slice(0, count), slice(0, features)), name, (*others, count * features), partial(_shaped, sizes)
        )
        return
    queries = config.dim_sizes["qk"] - 1
    for part, start, copies in (("q", 0, queries), ("k", queries, 1), ("v", queries + 1, 1))[: count - queries + 1]:
        heads = features // config.head_dim if copies > 1 else 1  # and each one's queries are a block
        size = features // heads
        for head in range(heads):
            place = *whole, slice(start, start + copies), slice(head * size, (head + 1) * size)
            view = partial(_head, (heads, copies, size, *others), head)
            yield Block(place, name.replace("{part}", part), (heads * copies * size, *others), view)


def _every_second(start: int, tensor: np.ndarray) -> np.ndarray:
    return tensor[..., start::2]


def _columns(rows: slice, tensor: np.ndarray) -> np.ndarray:
    return tensor[rows].T


def _shaped(sizes: list[int], tensor: np.ndarray) -> np.ndarray:
    return tensor.reshape(sizes)


def _head(shape: tuple[int, ...], head: int, tensor: np.ndarray) -> np.ndarray:
    """One head's part of a tensor of this shape, with the first two dims moved last."""
    return np.moveaxis(tensor.reshape(shape)[head], (0, 1), (-2, -1))


def _deeper(view: Callable[[np.ndarray], np.ndarray], tensor: np.ndarray) -> np.ndarray:
    """The view with one more dim, for one layer or expert."""
    return view(tensor)[None]


def _overlap(one: slice, other: slice) -> slice:
    return slice(max(one.start, other.start), min(one.stop, other.stop))


def _within(ranges: list[slice], index: Index) -> Index:
    """Ranges of a whole as ranges of its part at an index."""
    return tuple(slice(part.start - at.start, part.stop - at.start) for part, at in zip(ranges, index, strict=True))
