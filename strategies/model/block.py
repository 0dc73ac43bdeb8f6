"""A block of the model: a list of parts, and the kinds of blocks that a model may have (`GPTConfig.block`).

A model with other parts is a subclass of `Block` with its own `parts`, registered in `BLOCKS`. Alternating layers of
two kinds form one block with the parts of both (`of_layers`).

Dims: B batch, T tokens, D embed.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import ClassVar

from flax import nnx
from jaxtyping import Array, Float

from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.model.attention import Reach
from strategies.model.clamped_experts import ClampedExperts
from strategies.model.experts import Experts
from strategies.model.hooks import Hooks, LayerInfo
from strategies.model.latent_attention import LatentAttention
from strategies.model.layers import Extras, Sums, added
from strategies.model.parts import MLP, GatedMLP, LayerNorm, Part, RMSNorm
from strategies.model.self_attention import (
    Attention,
    BiasedRotaryAttention,
    HeadNormAttention,
    RotaryAttention,
    SinkAttention,
    WidthNormAttention,
)
from strategies.model.weights import WeightSpec

RESERVED = {"loss", "mtp", "grad_norm", "loss_scale"}
"""Metrics of every step (`Step.update`); extras must have other names."""


class Block(nnx.Module):
    """Pre-norm transformer block. Each branch takes the normalised residual stream and adds its output to the stream.

    Attributes:
        parts: by name, in order: norm, branch, norm, branch, ... The norm before the head is of the first norm's kind.
        learned_positions: whether the embedding has a table of positions.
        mixture: replaces the MLP in a model with experts.
    """

    parts: ClassVar[Mapping[str, type[Part]]] = {
        "norm1": LayerNorm,
        "attention": Attention,
        "norm2": LayerNorm,
        "mlp": MLP,
    }
    learned_positions: ClassVar[bool] = True
    mixture: ClassVar[type[Experts]] = Experts

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        for name, part in self.parts.items():
            setattr(self, name, part(config, rngs))

    def __call__(self, x_BTD: Float[Array, "B T D"], info: LayerInfo) -> tuple[Array, dict[str, Sums]]:
        """The residual stream with all branches added, and each branch's sums, by its name."""
        sums, names = {}, [*self.parts]
        for norm, name in zip(names[::2], names[1::2], strict=True):
            normed_BTD, branch = getattr(self, norm)(x_BTD), getattr(self, name)
            normed_BTD = normed_BTD if branch.gathers else info.hooks.all_tokens(normed_BTD)
            x_BTD, sums[name] = branch(x_BTD, normed_BTD, info)
        return x_BTD, sums

    def extras_of(self, sums: Mapping[str, Sums], hooks: Hooks) -> Extras:
        """Terms that the branches add to the loss, from each branch's sums."""
        extras: Extras = {}
        for name, found in sums.items():
            extras = added(extras, getattr(self, name).extras_of(found, hooks))
        if (named := set(self.extras())) != set(extras) or named & RESERVED:
            problem = f"it adds {sorted(extras)} to the loss, and its parts state extras {sorted(named)}"
            raise ValueError(f"{type(self).__name__}: {problem}; they must be the same, and not {sorted(RESERVED)}")
        return extras

    @classmethod
    def norm(cls) -> type[Part]:
        """The norm before the head."""
        return next(iter(cls.parts.values()))

    @classmethod
    @cache
    def branches(cls) -> tuple[type[Part], ...]:
        """The parts that add to the residual stream."""
        return tuple(cls.parts.values())[1::2]

    @classmethod
    @cache
    def extras(cls) -> tuple[str, ...]:
        """Names of the terms that its parts add to the loss."""
        return tuple(dict.fromkeys(name for part in cls.parts.values() for name in part.extras))

    @classmethod
    @cache
    def attentions(cls) -> int:
        """Number of its attention parts."""
        return sum(part.attends for part in cls.parts.values())

    @classmethod
    @cache
    def mixtures(cls) -> int:
        """Number of its mixtures of experts."""
        return sum(issubclass(part, Experts) for part in cls.parts.values())

    @classmethod
    def weights(cls, config: GPTConfig) -> Mapping[str, WeightSpec]:
        """Weights of all parts, such as "mlp.up_DF". Only the last part's may be unused by the backward pass."""
        last = [*cls.parts][-1]
        return {
            f"{name}.{weight}": replace(spec, backward="recomputation")
            if name != last and spec.backward == "unused"
            else spec
            for name, part in cls.parts.items()
            for weight, spec in part.weights(config).items()
        }

    @classmethod
    def reaches(cls, config: GPTConfig) -> tuple[Reach | None, ...]:
        """The reach of each of its attention parts."""
        return tuple(None if part.dense else Reach.of(config) for part in cls.parts.values() if part.attends)


class LlamaBlock(Block):
    """Block of Llama (Touvron et al. 2023, section 2.2)."""

    parts: ClassVar = {"norm1": RMSNorm, "attention": RotaryAttention, "norm2": RMSNorm, "mlp": GatedMLP}
    learned_positions: ClassVar = False


class Qwen2Block(LlamaBlock):
    """Block of Qwen2 (Yang et al. 2024, section 2.2)."""

    parts: ClassVar = {**LlamaBlock.parts, "attention": BiasedRotaryAttention}


class Qwen3Block(LlamaBlock):
    """Block of Qwen3 (Yang et al. 2025, section 2)."""

    parts: ClassVar = {**LlamaBlock.parts, "attention": HeadNormAttention}


class OlmoeBlock(LlamaBlock):
    """Block of OLMoE (Muennighoff et al. 2024, table 1), with experts in place of its MLP."""

    parts: ClassVar = {**LlamaBlock.parts, "attention": WidthNormAttention}


class GptOssBlock(LlamaBlock):
    """Block of gpt-oss (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2)."""

    parts: ClassVar = {**LlamaBlock.parts, "attention": SinkAttention}
    mixture: ClassVar = ClampedExperts


BLOCKS: dict[str, type[Block]] = {
    "gpt2": Block,
    "llama": LlamaBlock,
    "qwen2": Qwen2Block,
    "qwen3": Qwen3Block,
    "olmoe": OlmoeBlock,
    "gpt_oss": GptOssBlock,
}
"""Kinds of blocks by `GPTConfig.block`."""


def block_of(config: GPTConfig) -> type[Block]:
    """The block of a model. Latent attention replaces its attention, and experts replace its "mlp"."""
    if config.block not in BLOCKS:
        raise Infeasible(f"block={config.block!r} does not exist; use one of {', '.join(BLOCKS)}")
    block = BLOCKS[config.block]
    if config.latent_rank:
        if block.parts["attention"] is not RotaryAttention:
            raise Infeasible(f"latent_rank={config.latent_rank} does not go with block={config.block}; use block=llama")
        block = with_part(block, "attention", "attention", LatentAttention)
    block = with_part(block, "mlp", "experts", block.mixture) if config.experts else block
    return of_layers(block, config.full_attention_every) if config.full_attention_every else block


@cache
def with_part(block: type[Block], old: str, new: str, part: type[Part]) -> type[Block]:
    """The same block with another part in place of the part named `old`."""
    parts = dict((new, part) if name == old else (name, own) for name, own in block.parts.items())
    return type(f"{block.__name__}With{part.__name__}", (block,), {"parts": parts})


@cache
def of_layers(block: type[Block], count: int) -> type[Block]:
    """Merge `count` layers into one block. The last has full attention and parts named "attention_2" and so on."""
    names = {layer_name(name, layer): (part, layer) for layer in range(count) for name, part in block.parts.items()}
    parts = {name: _dense(part) if layer == count - 1 else part for name, (part, layer) in names.items()}
    return type(f"{block.__name__}Of{count}Layers", (block,), {"parts": parts})


def layer_name(part: str, layer: int) -> str:
    """Name of a part of a layer, counted from 0, in a block of several layers.

    >>> layer_name("attention", 0), layer_name("attention", 1)
    ('attention', 'attention_2')
    """
    return f"{part}_{layer + 1}" if layer else part


def part_and_layer(name: str) -> tuple[str, int]:
    """The inverse of `layer_name`.

    >>> part_and_layer("attention"), part_and_layer("attention_2")
    (('attention', 0), ('attention', 1))
    """
    part, _, number = name.rpartition("_")
    return (part, int(number) - 1) if number.isdigit() else (name, 0)


@cache
def _dense(part: type[Part]) -> type[Part]:
    """The same part; if it is attention, without window or stride."""
    return type(f"Dense{part.__name__}", (part,), {"dense": True}) if part.attends else part
