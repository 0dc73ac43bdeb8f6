"""A block is a list of parts: one with other parts needs this file alone, and every strategy trains it.

The parts are those of a Llama block: RMSNorm, grouped-query attention with rotary positions, and a gated MLP.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from benchmarks.devices.topology import Topology
from benchmarks.program.compiled import read_program
from benchmarks.search.advised import advised
from benchmarks.search.candidates import SearchSpace
from benchmarks.seconds.machines import machine
from benchmarks.seconds.predicted import predict_seconds
from strategies import STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig, checkpoints
from strategies.costs import working
from strategies.costs.overview import asked_overview
from strategies.costs.predict import predict
from strategies.mesh import first_devices
from strategies.model.attention import QKV
from strategies.model.block import BLOCKS, Block
from strategies.model.gpt import flops_per_token, param_count
from strategies.model.matmul import matmul
from strategies.model.part import Part, Share, add_bias, add_branch
from strategies.model.remat import KEPT
from strategies.model.self_attention import Attention
from strategies.model.weights import matrix, vector
from strategies.single import SINGLE
from tests.strategies import quick
from tests.strategies.costs.steps import by_axes, compiled, cost, sent, step
from tests.strategies.equality import CONFIG, ROUNDING, TRAIN, assert_equal, initial, trained
from tests.strategies.sampling import nightly, unless_sampled


class RMSNorm(Part):
    """Divide features by their root mean square (Zhang and Sennrich 2019, equation 4)."""

    scale_D: nnx.Param

    @staticmethod
    def weights(config):
        """Scale one."""
        return {"scale_D": vector("embed", value=1.0)}

    def __call__(self, x_BTD):
        """Normalise over D in float32."""
        wide_BTD = x_BTD.astype(jnp.float32)
        inverse_BT1 = checkpoint_name(lax.rsqrt(jnp.square(wide_BTD).mean(-1, keepdims=True) + 1e-5), KEPT)
        return (wide_BTD * inverse_BT1 * self.scale_D).astype(x_BTD.dtype)

    @staticmethod
    def kept_bytes(share):
        """One number a token."""
        return 4 * share.residual_tokens if share.train.remat == "dots" else 0


class RotaryAttention(Attention):
    """Attention that rotates queries and keys by the positions of their tokens."""

    def __call__(self, x_BTD, normed_BTD, info):
        """Add the attention of `normed` to the residual stream x."""
        hooks = info.hooks
        qkv_BTCE = add_bias(hooks.project(normed_BTD, self.qkv_DCA[...]), self.qkv_bias_CA)
        q, k, v = QKV(hooks.projected(checkpoint_name(qkv_BTCE, KEPT)), self.head_dim).apart
        qkv = QKV.of(rotated(q, info.positions_T), rotated(k, info.positions_T), v)
        mixed_BTA = hooks.attend(qkv, info.kernel, info.reach)
        return add_branch(x_BTD, hooks.sum(matmul(mixed_BTA, self.out_AD[...])), self.out_bias_D), {}


def rotated(x_BTHK, position_T):
    """Rotate pairs of features by angles that grow with the position (Su et al. 2021, "RoFormer", section 3.2.2)."""
    first, second = jnp.split(x_BTHK, 2, axis=-1)
    angle_TK = position_T[:, None] / 100 ** jnp.linspace(0, 1, first.shape[-1], endpoint=False)
    cos_T1K, sin_T1K = (function(angle_TK)[:, None].astype(x_BTHK.dtype) for function in (jnp.cos, jnp.sin))
    return jnp.concatenate([first * cos_T1K - second * sin_T1K, first * sin_T1K + second * cos_T1K], -1)


class GatedMLP(Part):
    """SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer"), with remat="dots" or "full"."""

    gate_DF: nnx.Param
    up_DF: nnx.Param
    down_FD: nnx.Param
    down_bias_D: nnx.Param

    @staticmethod
    def weights(config):
        """Three matrices and a bias."""
        into, out = matrix("embed", "mlp"), matrix("mlp", "embed")
        return {"gate_DF": into, "up_DF": into, "down_FD": out, "down_bias_D": vector("embed", backward="unused")}

    def __call__(self, x_BTD, normed_BTD, info):
        """Add the gated MLP to the residual stream."""
        hidden_BTF = jax.nn.silu(matmul(normed_BTD, self.gate_DF[...])) * matmul(normed_BTD, self.up_DF[...])
        return add_branch(x_BTD, info.hooks.sum(matmul(hidden_BTF, self.down_FD[...])), self.down_bias_D), {}

    @staticmethod
    def kept_bytes(share):
        """Gate and up."""
        return 2 * share.itemsize * share.tokens * share.mlp if share.train.remat == "dots" else 0


def gated(share: Share) -> int:
    """Working arrays: gate, up, their product, and the gradients of gate and up."""
    return 5 * share.tokens * share.mlp


def norm(share: Share) -> int:
    """As those of LayerNorm."""
    return working.norm(share)


class ToyBlock(Block):
    """The parts of a Llama block."""

    parts: ClassVar = {"norm1": RMSNorm, "attention": RotaryAttention, "norm2": RMSNorm, "mlp": GatedMLP}


SMALL = dataclasses.replace(CONFIG, block="toy", key_heads=4)
TOY = GPTConfig(layers=6, embed=48, heads=8, key_heads=4, head_size=10, vocab=257, sequence=24, mlp=80, block="toy")


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that has to be told of the block."""
    monkeypatch.setitem(BLOCKS, "toy", ToyBlock)
    for part, elements in ((RMSNorm, norm), (RotaryAttention, working.attention), (GatedMLP, gated)):
        monkeypatch.setitem(working.PARTS, part, working.Working(elements))


MESHES = {
    "data": ("data=4", {"reduce": "layer"}),
    "zero1": ("data=4", {}),
    "zero2": ("data=4", {"microbatches": 2}),
    "fsdp": ("fsdp=4", {"prefetch": "on"}),
    "hsdp": ("data=2,fsdp=2", {}),
    "tensor": ("tensor=2", {"remat": "full"}),
    "context": ("context=4", {}),
    "pipeline": ("pipeline=2", {"microbatches": 4}),
    "three_d": ("fsdp=2,context=2,tensor=2", {}),
    "auto": ("fsdp=2,tensor=2", {}),
}


def ran(name: str, mesh: str, **options):
    """The results of three steps, the step and its last state."""
    spec = MeshSpec.parse(mesh)
    train = dataclasses.replace(TRAIN, **options)
    built = STRATEGIES[name].build(SMALL, spec, train, first_devices(spec.size))
    results, state = trained(built, initial(built), range(3))
    return results, built, state


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        *(unless_sampled(name, *MESHES[name]) for name in MESHES if name != "single"),
        *nightly(
            ("three_d", "fsdp=2,pipeline=2,tensor=2", {"microbatches": 4, "schedule": "zb-h1"}),
            ("three_d", "data=2,context=2,tensor=2", {"context_attention": "ulysses", "sequence_parallel": False}),
            ("context", "context=2", {"context_attention": "ulysses", "remat": "full"}),
            ("fsdp", "fsdp=4", {"dtype": "bfloat16", "remat": "none"}),
        ),
    ],
)
def test_every_strategy_trains_it_as_one_device(name, mesh, options, tmp_path):
    """Losses, gradients and weights are those of one device, which restores the checkpoint."""
    exact = {key: options[key] for key in options if key == "dtype"}
    reference, alone, _ = ran("single", "data=1", **exact)
    results, built, state = ran(name, mesh, **options)
    assert_equal(results, reference, ROUNDING[options.get("dtype", "float32")])
    checkpoints.save(built, state, tmp_path).wait()
    there = checkpoints.restore(alone, tmp_path).params["blocks"]["mlp"]["gate_DF"]
    np.testing.assert_array_equal(there, results[2][-1].params["blocks"]["mlp"]["gate_DF"].astype(there.dtype))


@pytest.mark.parametrize(
    ("name", "mesh", "train"),
    [
        ("single", "data=1", {}),
        ("fsdp", "fsdp=4", {"microbatches": 2}),
        ("tensor", "tensor=4", {"remat": "full"}),
        ("pipeline", "pipeline=2", {"microbatches": 4}),
        ("three_d", "fsdp=2,context=2,tensor=2", {}),
        *nightly(
            ("tensor", "tensor=4", {}),
            ("context", "context=4", {}),
            ("context", "context=4", {"remat": "full"}),
            ("context", "context=2", {"context_attention": "ulysses"}),
            ("context", "context=2", {"context_attention": "ulysses", "remat": "full"}),
            ("data", "data=8", {}),
            ("zero1", "data=4", {}),
            ("zero2", "data=4", {"microbatches": 2}),
            ("hsdp", "data=2,fsdp=4", {"prefetch": "on", "remat": "full"}),
            ("three_d", "data=2,pipeline=2,tensor=2", {"microbatches": 4, "sequence_parallel": False}),
        ),
    ],
)
def test_its_formulas_are_those_of_what_it_states(name, mesh, train) -> None:
    """The compiled program sends, computes and takes what the formulas say, to the byte, and needs the memory."""
    program, memory = compiled(name, mesh, TOY, **train)
    predicted = cost(name, mesh, TOY, **train)
    assert sent(program) == by_axes(predicted)
    assert program.flops * predicted.plan.mesh.size == sum(predicted.flops.values())
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())
    assert memory.temp_size_in_bytes == pytest.approx(sum(predicted.temporaries.values()), rel=0.15)


def test_sizes_follow_the_parts() -> None:
    """Parameters are those of the model, and each weight of a matmul counts 6 FLOPs a token."""
    untied = dataclasses.replace(TOY, tied=False, vocab_multiple=1)
    weights = step("single", "data=1", untied).state.params
    assert param_count(untied) == sum(math.prod(w.shape) for w in jax.tree.leaves(weights))
    scores = 12 * TOY.layers * TOY.head_features * TOY.sequence
    in_layer = TOY.embed * (2 * TOY.head_features + 2 * TOY.key_features + 3 * TOY.mlp_dim)
    assert flops_per_token(untied) == 6 * (TOY.layers * in_layer + TOY.vocab * TOY.embed) + scores


def test_commands_know_it(monkeypatch) -> None:
    """`show` lists its arrays, `search` ranks its meshes, and its seconds are predicted: a larger MLP takes longer."""
    monkeypatch.setattr("strategies.costs.overview.PRESETS", {"toy": TOY})
    shown = asked_overview("tensor", "toy", "tensor=2", None, None)
    gate = next(each for each in shown.arrays if each.name == "blocks.mlp.gate_DF")
    assert (gate.shape, gate.axes[2]) == ((TOY.layers, TOY.embed, TOY.mlp_dim), ("tensor",))
    assert "blocks.mlp.gate_DF" in shown.array_table()

    here, devices = machine("meshmark_gpus"), Topology.parse("h100:1x8")
    space = SearchSpace(devices, "toy", dataclasses.replace(TOY, sequence=32), 16, "bfloat16")
    choices = advised(space.cases(), here, devices)
    assert choices.best

    def seconds(config: GPTConfig) -> float:
        train = TrainConfig(16, dtype="bfloat16")
        return predict_seconds(predict("tensor", config, "tensor=2", train, "cuda"), here, devices).step_seconds

    large = dataclasses.replace(TOY, embed=2048, mlp=8192, sequence=512)
    assert seconds(dataclasses.replace(large, mlp=16384)) > seconds(large)


class Alternating(Block):
    """GPT-2's parts, then those of a Llama block."""

    parts: ClassVar = {
        **Block.parts,
        "norm3": RMSNorm,
        "attention2": RotaryAttention,
        "norm4": RMSNorm,
        "mlp2": GatedMLP,
    }


def test_two_kinds_of_layers_alternate(monkeypatch) -> None:
    """As one block with the parts of both. It trains as one device does, and its formulas count both attentions."""
    monkeypatch.setitem(BLOCKS, "both", Alternating)
    config, spec = dataclasses.replace(SMALL, block="both", layers=2), MeshSpec.parse("context=4")
    steps = [
        STRATEGIES[name].build(config, mesh, TRAIN, first_devices(mesh.size))
        for name, mesh in (("single", MeshSpec.parse("data=1")), ("context", spec))
    ]
    reference, mine = (trained(each, initial(each), range(3))[0] for each in steps)
    assert_equal(mine, reference, ROUNDING["float32"])
    predicted = predict("context", config, spec, TRAIN)
    program = read_program(quick.compiled(steps[1].lower()).as_text() or "", steps[1].mesh.shape)
    assert sent(program) == by_axes(predicted)
    assert program.flops * spec.size == sum(predicted.flops.values())


@pytest.mark.parametrize(
    ("name", "mesh", "options", "message"),
    [
        ("tensor", "tensor=4", {}, "tensor=4 does not divide key_heads=2"),
        ("context", "context=4", {"context_attention": "ulysses"}, "context=4 does not divide key_heads=2"),
    ],
)
def test_more_devices_than_heads_of_keys_are_refused(name, mesh, options, message) -> None:
    """With the numbers, by the step and by the formulas."""
    config, train = dataclasses.replace(SMALL, key_heads=2), dataclasses.replace(TRAIN, **options)
    for check in (STRATEGIES[name].build, lambda *given: predict(name, *given)):
        with pytest.raises(Infeasible, match=message):
            check(config, MeshSpec.parse(mesh), train)


def test_a_block_that_does_not_exist_is_refused() -> None:
    """With those that do."""
    with pytest.raises(Infeasible, match="there is no block 'lama'; blocks are gpt2"):
        SINGLE.build(dataclasses.replace(SMALL, block="lama"), "data=1", TRAIN, first_devices(1))
