"""The model is GPT-2, it looks only backwards, its padding changes nothing, and it keeps no more than it must."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from strategies import TrainConfig
from strategies.config import Dtype
from strategies.model.gpt import GPT, param_count
from strategies.step import forward
from tests.strategies.model.tiny_gpt import TINY, TRAIN, build, tokens
from tests.strategies.sampling import nightly

DEPTH = 2 * 12 * TINY.layers
"""Operations on the longest path through the blocks, forward and back: some 12 a block each way."""
ROUNDING = DEPTH * math.sqrt(64) * 2**-24
"""Each rounds sums of at most 64 terms, by about sqrt(64) half-units (Higham & Mary 2019), relative to their norm."""


def mean_loss(graph, tokens_BS):
    """As a function of the weights."""
    return lambda weights: forward(nnx.merge(graph, weights), tokens_BS)[0].mean()


def distance(mine, reference):
    """Between two arrays, relative to the norm of the second."""
    return np.linalg.norm(np.asarray(mine) - reference) / np.linalg.norm(reference)


def norm(x, weights, name):
    """LayerNorm in numpy."""
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * weights[name]["scale_D"] + weights[name]["bias_D"]


def gpt2_losses(weights, config, tokens_BS):
    """GPT-2 in float64 numpy, written from the paper (Radford et al. 2019), one head and one layer at a time."""
    table = weights["embedding"]["token_VD"]
    x = table[tokens_BS[:, :-1]] + weights["embedding"]["position_TD"]
    for layer in range(config.layers):
        block = jax.tree.map(lambda w, layer=layer: w[layer], weights["blocks"])
        attention, mlp = block["attention"], block["mlp"]
        q, k, v = np.moveaxis(np.einsum("btd,dca->btca", norm(x, block, "norm1"), attention["qkv_DCA"]), 2, 0)
        q, k, v = (part + bias for part, bias in zip((q, k, v), attention["qkv_bias_CA"], strict=True))
        heads = []
        for h in range(config.heads):
            at = slice(h * config.head_dim, (h + 1) * config.head_dim)
            scores = q[..., at] @ k[..., at].swapaxes(1, 2) / math.sqrt(config.head_dim)
            scores = np.exp(np.where(np.tri(config.sequence, dtype=bool), scores, -np.inf))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v[..., at])
        x = x + np.concatenate(heads, -1) @ attention["out_AD"] + attention["out_bias_D"]
        hidden = norm(x, block, "norm2") @ mlp["up_DF"] + mlp["up_bias_F"]
        hidden = hidden / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + hidden @ mlp["down_FD"] + mlp["down_bias_D"]
    head = weights["head"].get("token_VD", table)
    logits = norm(x, weights["head"], "norm") @ head[: config.vocab].T
    log_total = np.log(np.exp(logits).sum(-1))
    return (log_total - np.take_along_axis(logits, tokens_BS[:, 1:, None], -1)[..., 0]).reshape(-1)


def float64(model):
    """Its weights as nested dicts of float64."""
    return jax.tree.map(lambda w: np.asarray(w, np.float64), nnx.to_pure_dict(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize(("tied", "heads"), [(True, {}), (False, {}), (True, {"heads": 3, "head_size": 6})], ids=str)
def test_it_is_gpt2(tied, heads):
    """The losses of tokens are those of GPT-2 written independently, to float32 rounding (`DEPTH` operations deep).

    Also where the features of all heads are more than those of the residual stream.
    """
    config = dataclasses.replace(TINY, tied=tied, **heads)
    model = build(config)
    expected = gpt2_losses(float64(model), config, tokens(config))
    assert expected.std() > 0.1, "weights so small that parts of the model would not be seen"
    assert distance(jax.jit(forward)(model, tokens(config))[0], expected) < ROUNDING


def test_param_count_is_that_of_the_model():
    """The closed formula counts what is there, tied or not, whatever the width of the MLP and of the heads."""
    for tied, head_size in ((True, None), (False, 7)):
        config = dataclasses.replace(TINY, tied=tied, mlp=24, head_size=head_size)
        weights = nnx.state(nnx.eval_shape(lambda config=config: GPT(config, TRAIN, nnx.Rngs(0))), nnx.Param)
        assert sum(math.prod(w.shape) for w in jax.tree.leaves(weights)) == param_count(config)


def test_no_token_sees_a_later_one():
    """The gradient of a token's loss by the embeddings past it is zero, exactly; up to it, it is not."""
    model, tokens_BS = build(), tokens()

    def loss_at_5(x_BTD):
        return model.losses(model.run(x_BTD)[0], tokens_BS[:, 1:]).reshape(3, -1)[:, 5].sum()

    size_BT = np.abs(jax.jit(jax.grad(loss_at_5))(model.embed(tokens_BS[:, :-1]))).sum(-1)
    assert (size_BT[:, 6:] == 0).all()
    assert (size_BT[:, :6] > 0).all()


@pytest.mark.parametrize("tied", [True, *nightly(False)])
def test_padding_the_vocabulary_changes_no_number(tied):
    """More rows than words: same weights, same losses, same gradients, and none at all for the padding."""
    config = dataclasses.replace(TINY, tied=tied)

    def losses_and_grads(rows):
        graph, weights = nnx.split(build(config, padded_vocab=rows))
        loss, grads = jax.jit(jax.value_and_grad(mean_loss(graph, tokens(config))))(weights)
        return loss, nnx.to_pure_dict(grads)

    (loss, grads), (padded_loss, padded_grads) = losses_and_grads(config.vocab), losses_and_grads(32)
    part = grads["embedding" if tied else "head"]
    padded_part = padded_grads["embedding" if tied else "head"]
    assert distance(padded_loss, loss) < ROUNDING
    assert distance(padded_part["token_VD"][: config.vocab], part["token_VD"]) < ROUNDING
    assert (padded_part["token_VD"][config.vocab :] == 0).all()


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_rematerialisation_changes_memory_and_no_gradient(remat):
    """What is kept or computed again is the same numbers."""
    graph, weights = nnx.split(build(train=dataclasses.replace(TRAIN, remat=remat)))
    reference, _ = nnx.split(build(train=dataclasses.replace(TRAIN, remat="none")))

    grads, expected = (jax.jit(jax.grad(mean_loss(graph, tokens())))(weights) for graph in (graph, reference))
    for mine, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        assert distance(mine, theirs) < ROUNDING


def kept(remat, dtype: Dtype = "float32"):
    """Shapes and dtypes of all that the forward pass keeps for the backward pass."""
    graph, weights = nnx.split(build(train=TrainConfig(batch_size=3, remat=remat, dtype=dtype)))
    pull = jax.eval_shape(lambda w: jax.vjp(mean_loss(graph, tokens()), w)[1], weights)
    return [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(pull)]


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_no_scores_are_kept(remat):
    """Nothing of size [B,H,T,T] outlives the forward pass of its layer, whatever the rematerialisation."""
    assert not [shape for shape, _ in kept(remat) if shape[-2:] == (TINY.sequence, TINY.sequence)]


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_no_float32_copy_of_the_logits_is_kept(remat):
    """In bfloat16 the logits are kept once, in bfloat16: the head's backward pass comes at once, and takes them."""
    logits = [dtype for shape, dtype in kept(remat, "bfloat16") if shape == (3 * TINY.sequence, TINY.vocab)]
    assert logits == ["bfloat16"]


def test_each_policy_keeps_less_than_the_one_before():
    """none, dots, full: fewer bytes each, or the option would be of no use."""
    sizes = [sum(math.prod(shape) for shape, _ in kept(remat)) for remat in ("none", "dots", "full")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_bfloat16_computes_in_bfloat16():
    """The residual stream has the compute dtype; the weights stay float32, the losses come in float32."""
    model = build(train=dataclasses.replace(TRAIN, dtype="bfloat16"))
    x_BTD = jax.eval_shape(model.embed, tokens()[:, :-1])
    assert x_BTD.dtype == jax.eval_shape(model.run, x_BTD)[0].dtype == jnp.bfloat16
    assert jax.eval_shape(forward, model, tokens())[0].dtype == jnp.float32
    assert {w.dtype for w in jax.tree.leaves(nnx.state(model, nnx.Param))} == {jnp.dtype("float32")}
