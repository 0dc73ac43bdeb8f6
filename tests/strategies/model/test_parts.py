"""A part of the model states its weights, FLOPs and activations in one place: the formulas follow a new part."""

import dataclasses
import math
from collections.abc import Iterator

import jax
import pytest
from flax import nnx

from strategies.costs import working
from strategies.model import gpt
from strategies.model.gpt import flops_per_token, param_count
from strategies.model.matmul import matmul
from strategies.model.part import Part, Share, add_branch
from strategies.model.weights import matrix, vector
from tests.strategies.costs.steps import ODD, UNTIED, by_axes, compiled, cost, sent, step
from tests.strategies.sampling import nightly


class GatedMLP(Part):
    """SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer"), with remat="dots" or "full"."""

    contracted = "mlp"
    gate_DF: nnx.Param
    up_DF: nnx.Param
    down_FD: nnx.Param
    down_bias_D: nnx.Param

    @staticmethod
    def weights(config):
        """Three matrices and a bias."""
        into, out = matrix("embed", "mlp"), matrix("mlp", "embed")
        return {"gate_DF": into, "up_DF": into, "down_FD": out, "down_bias_D": vector("embed", backward="unused")}

    def __call__(self, x_BTD, normed_BTD, hooks):
        """Add the gated MLP to the residual stream."""
        hidden_BTF = jax.nn.silu(matmul(normed_BTD, self.gate_DF[...])) * matmul(normed_BTD, self.up_DF[...])
        return add_branch(x_BTD, hooks.sum(matmul(hidden_BTF, self.down_FD[...])), self.down_bias_D)

    @staticmethod
    def matmul_flops(config):
        """Gate, up and down."""
        return 2 * 3 * config.embed * config.mlp_dim

    @staticmethod
    def recomputed_flops(config):
        """Gate and up."""
        return 2 * 2 * config.embed * config.mlp_dim

    @staticmethod
    def kept_bytes(share):
        """Gate and up."""
        return 2 * share.itemsize * share.tokens * share.mlp if share.train.remat == "dots" else 0


def gated_elements(share: Share) -> int:
    """Working arrays: gate, up, their product, and the gradients of gate and up."""
    return 5 * share.tokens * share.mlp


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The model has the other MLP."""

    def forget() -> None:
        gpt.weight_specs.cache_clear()

    with monkeypatch.context() as patch:
        patch.setattr(gpt, "MLP", GatedMLP)
        patch.setitem(working.PARTS, GatedMLP, working.Working(gated_elements))
        forget()
        yield
    forget()


@pytest.mark.parametrize(
    ("name", "mesh", "train"),
    [
        ("single", "data=1", {}),
        ("fsdp", "fsdp=4", {"microbatches": 2}),
        ("tensor", "tensor=4", {"remat": "full"}),
        *nightly(("tensor", "tensor=4", {})),
        ("pipeline", "pipeline=2", {"microbatches": 4}),
    ],
)
def test_another_mlp_needs_no_other_formula(gated: None, name: str, mesh: str, train: dict) -> None:
    """The compiled program sends, computes and takes what the formulas make of its statement, to the byte."""
    program, memory = compiled(name, mesh, ODD, **train)
    predicted = cost(name, mesh, ODD, **train)
    assert sent(program) == by_axes(predicted)
    assert program.flops * predicted.plan.mesh.size == sum(predicted.flops.values())
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())
    assert memory.temp_size_in_bytes == pytest.approx(sum(predicted.temporaries.values()), rel=0.15)


def test_sizes_follow_the_parts(gated: None) -> None:
    """Parameters are those of the model, and each of the MLP's matrices counts 6 FLOPs a token."""
    weights = step("single", "data=1", dataclasses.replace(UNTIED, vocab_multiple=1)).state.params
    assert param_count(UNTIED) == sum(math.prod(w.shape) for w in jax.tree.leaves(weights))
    assert "gate_DF" in weights["blocks"]["mlp"]
    scores = 12 * UNTIED.layers * UNTIED.embed * UNTIED.sequence
    matrices = UNTIED.layers * UNTIED.embed * (4 * UNTIED.embed + 3 * UNTIED.mlp_dim) + UNTIED.vocab * UNTIED.embed
    assert flops_per_token(UNTIED) == 6 * matrices + scores


def test_parts_have_the_statement_of_the_block() -> None:
    """The parts that are summed are those that a block is made of, in their order of construction."""
    block = nnx.eval_shape(lambda: gpt.Block(ODD, nnx.Rngs(0)))
    assert tuple(type(getattr(block, name)) for name in ("norm1", "attention", "norm2", "mlp")) == gpt.Block.parts()
    assert set(nnx.to_pure_dict(nnx.state(block))) == {"norm1", "attention", "norm2", "mlp"}
