"""The check finds a wrong gradient or update of any weight, and names it; rounding passes."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from strategies import PRESETS, STRATEGIES, GPTConfig, Infeasible, Step, TrainConfig
from strategies.checking import (
    Agreement,
    FirstSteps,
    Mismatch,
    check,
    check_step,
    compare,
    in_float32,
    initial_weights,
    is_rounded,
)
from strategies.checking.check import first_steps, for_one_device
from strategies.checking.projections import Projection, project
from strategies.checkpoints import leaves
from strategies.single import SINGLE
from tests.silent_bugs import norms
from tests.strategies.checking.shared_runs import shared_runs
from tests.strategies.sampling import nightly
from tests.strategies.wrong_gradients import planted, scaled

GPT = dataclasses.replace(PRESETS["nano"], layers=2, embed=32, sequence=16, vocab=257)
LLAMA = dataclasses.replace(PRESETS["nano-llama"], layers=5, embed=32, heads=4, key_heads=2, sequence=16, vocab=257)
MIXTURE = dataclasses.replace(PRESETS["nano-moe"], layers=2, embed=32, heads=4, sequence=16, expert_mlp=32, vocab=257)
TRAIN = TrainConfig(batch_size=8)


@pytest.fixture(scope="module", autouse=True)
def _shared() -> Iterator[None]:
    with shared_runs():
        yield


@cache
def batches(config: GPTConfig) -> list[np.ndarray]:
    """Two batches of random tokens."""
    shape = TRAIN.batch_size, config.sequence + 1
    return [np.random.default_rng(seed).integers(0, config.vocab, shape) for seed in range(2)]


@cache
def single(config: GPTConfig, train: TrainConfig) -> FirstSteps:
    """The first steps of one device."""
    return first_steps(SINGLE.build(config, "data=1", for_one_device(train, config)), batches(config))


@cache
def built(name: str, mesh: str, config: GPTConfig, train: TrainConfig = TRAIN) -> Step:
    """A sound step. Its functions are compiled once, also for steps that change one of them."""
    return STRATEGIES[name].build(config, mesh, train)


@cache
def sound_steps(config: GPTConfig) -> FirstSteps:
    """The first steps of two sound replicas, which several tests change."""
    return first_steps(built("data", "data=2", config), batches(config))


def agreement(step: Step) -> Agreement:
    """What agrees with one device."""
    return compare(step, first_steps(step, batches(step.config)), single(step.config, step.train))


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options"),
    [
        ("zero1", "data=2", GPT, {"master": "float32", "dtype": "bfloat16"}),
        ("tensor", "tensor=4", LLAMA, {}),
        *nightly(  # every day silent_bugs has a sound step of each strategy
            ("expert", "data=2,expert=2", MIXTURE, {}),
            ("pipeline", "pipeline=2", LLAMA, {"schedule": "interleaved", "microbatches": 2}),
            ("fsdp", "fsdp=2", GPT, {"dtype": "float16"}),
            ("three_d", "data=2,pipeline=2,tensor=2", GPT, {"microbatches": 2}),
            ("auto", "fsdp=2,tensor=2", GPT, {}),
            ("context", "context=2", LLAMA, {}),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sound_steps_pass(name: str, mesh: str, config: GPTConfig, options: dict[str, Any]) -> None:
    """Steps with padding, slots, copies of KV heads, experts, master weights and loss scaling agree with one device."""
    train = dataclasses.replace(TRAIN, **options)
    agrees = agreement(STRATEGIES[name].build(config, mesh, train))
    assert agrees.gradients > 30
    assert agrees.flips == 0


def test_a_halved_gradient_of_one_weight_is_named() -> None:
    """The message has the weight, both numbers, their ratio, and the axis that has this size."""
    step = built("data", "data=2", GPT)
    wrong = planted(step, scaled(0.5, "norm1']['scale_D"))
    with pytest.raises(
        Mismatch,
        match=r"gradient of blocks\.norm1\.scale_D in layer \d is 0\.500 of one device's "
        r"\(norm \S+ where one device has \S+; rounding explains \S+\): a sum over `data` is missing\?",
    ):
        agreement(wrong)


@pytest.mark.parametrize("factor", [0.5, 1.01])
def test_every_weight_is_seen(factor: float) -> None:
    """In float32 a gradient that is 1% too large is found in each weight of a model, one at a time."""
    step = built("data", "data=2", LLAMA)
    sound = sound_steps(LLAMA)
    for name, of in sound.gradients.items():
        wrong = dataclasses.replace(of, norm_LU=factor * of.norm_LU, signed_LU=factor * of.signed_LU)
        with pytest.raises(Mismatch, match=f"gradient of {name}"):
            compare(step, dataclasses.replace(sound, gradients={**sound.gradients, name: wrong}), single(LLAMA, TRAIN))


def test_halved_gradients_of_norms_are_seen_in_bfloat16() -> None:
    """In 16 bits, where norms have a thousandth of the whole gradient, a halved one is found, too."""
    train = dataclasses.replace(TRAIN, dtype="bfloat16")
    step = built("data", "data=2", GPT, train)
    agreement(step)
    with pytest.raises(Mismatch, match=r"norm\S+ in layer \d is 0\.\d+ of one device"):
        agreement(planted(step, scaled(0.5, "norm")))


def test_a_gradient_in_the_wrong_places_is_seen() -> None:
    """A gradient with the right norm in the wrong elements is found by its projection."""
    step = built("data", "data=2", GPT)

    def turned(grads: Any) -> Any:
        grads["blocks"]["mlp"]["up_DF"] = grads["blocks"]["mlp"]["up_DF"][:, :, ::-1]
        return grads

    with pytest.raises(Mismatch, match=r"gradient of blocks\.mlp\.up_DF in layer \d: projection"):
        agreement(planted(step, turned))


def test_drift_counts_each_update() -> None:
    """AdamW's first update has the size of the learning rate, so an element whose first gradient is rounding may move
    either way, however large its later gradients are: here rows of tokens that only the second batch has.
    """
    config = dataclasses.replace(LLAMA, layers=1, vocab=128)
    half = config.vocab // 2
    first = np.resize(np.arange(half), (TRAIN.batch_size, config.sequence + 1))
    drifts_LU = first_steps(SINGLE.build(config, "data=1", TRAIN), [first, first + half]).drifts_LU
    assert drifts_LU["embedding.token_VD"][0, 0] >= 2 * TRAIN.learning_rate * (half * config.embed) ** 0.5


def test_an_update_that_is_lost_is_seen() -> None:
    """A weight that the optimizer does not change is found, though its gradient is right."""
    step = built("data", "data=2", GPT)

    def update(state: Any, batch: Any) -> Any:
        new, metrics = step.update.__wrapped__(state, batch)  # pyright: ignore[reportAttributeAccessIssue]
        new.params["head"]["norm"]["scale_D"] = state.params["head"]["norm"]["scale_D"]
        return new, metrics

    with pytest.raises(Mismatch, match=r"(change|gradient) of head\.norm\.scale_D"):
        agreement(dataclasses.replace(step, update=jax.jit(update), xla_options={}))


def test_a_norm_that_counts_replicas_is_seen() -> None:
    """A global gradient norm that is off is named as such, where all gradients agree."""
    step = STRATEGIES["data"].build(GPT, "data=2", dataclasses.replace(TRAIN, clip_norm=float("inf")))
    wrong = planted(step, metrics=lambda metrics: {**metrics, "grad_norm": 2**0.5 * metrics["grad_norm"]})
    with pytest.raises(Mismatch, match="step 1: gradient norm"):
        agreement(wrong)


def test_replicas_that_differ_are_seen() -> None:
    """An array whose copies differ between devices has the axis along which they do."""
    step = STRATEGIES["hsdp"].build(GPT, "data=2,fsdp=2", TRAIN)
    leaf = next(leaf for leaf in leaves(step) if leaf.name == "mu/head.norm.scale_D")
    sharding = NamedSharding(step.mesh, P("fsdp"))
    assert leaf.stored.sharding.is_equivalent_to(sharding, 1)
    halves = [jnp.full(16, 1.0 + 0.5 * (i == 2), device=device) for i, device in enumerate(step.mesh.devices.flat)]
    (of,) = project(step.mesh, [leaf], [jax.make_array_from_single_device_arrays((32,), sharding, halves)], [None])
    assert set(of.differing) == {"data"}
    assert of.norm_LU == pytest.approx(32**0.5)


@pytest.mark.parametrize("on_host", [True, False])
def test_projections_do_not_depend_on_the_mesh(monkeypatch: pytest.MonkeyPatch, *, on_host: bool) -> None:
    """Equal weights have equal projections wherever their elements lie: in slots, padded tables and copied heads.

    So they have whether the host adds them up, which it does for CPU devices, or each device.
    """

    def projections(name: str, mesh: str, **options: Any) -> dict[str, Any]:
        step = STRATEGIES[name].build(LLAMA, mesh, dataclasses.replace(TRAIN, **options))
        weights = {leaf.name: leaf for leaf in leaves(step) if leaf.is_weight}
        arrays = initial_weights(step)(jax.random.key(0))
        return dict(zip(weights, project(step.mesh, [*weights.values()], arrays, [None] * len(arrays)), strict=True))

    reference = projections("single", "data=1")
    monkeypatch.setattr("strategies.checking.projections.is_on_host", lambda mesh: on_host)
    for other in (
        projections("tensor", "tensor=4"),
        projections("pipeline", "pipeline=2", schedule="interleaved", microbatches=2),
        projections("fsdp", "fsdp=4"),
    ):
        for name, of in reference.items():
            np.testing.assert_allclose(other[name].norm_LU, of.norm_LU, rtol=1e-6)
            np.testing.assert_allclose(other[name].signed_LU, of.signed_LU, atol=2e-6 * of.norm_LU.max())
            assert not other[name].differing


def test_other_choices_of_experts_are_seen() -> None:
    """Routing that differs from one device's by more than rounding explains is a mismatch of its own."""
    step = built("data", "data=2", MIXTURE)
    sound, reference = sound_steps(MIXTURE), single(MIXTURE, TRAIN)
    assert compare(step, sound, reference).flips == 0
    moved = [choices_LE.copy() for choices_LE in sound.choices]
    moved[0][0, :2] += (20, -20)
    with pytest.raises(Mismatch, match=r"20 of \d+ choices of experts differ"):
        compare(step, dataclasses.replace(sound, choices=tuple(moved)), reference)


def test_two_tokens_may_swap_their_experts_in_16_bits() -> None:
    """No count shows it. If choices differ later, the first gradients may differ as theirs do."""
    train = dataclasses.replace(TRAIN, dtype="bfloat16")
    step, weight = built("data", "data=2", MIXTURE, train), "blocks.experts.up_EDF"
    reference = single(MIXTURE, train)
    later = reference.choices[-1].copy()
    later[0, :2] += (3, -3)
    of = reference.of_first_step[weight]
    swapped = {**reference.of_first_step, weight: dataclasses.replace(of, norm_LU=of.norm_LU * 1.05)}
    found = dataclasses.replace(reference, of_first_step=swapped)
    compare(step, dataclasses.replace(found, choices=(*reference.choices[:-1], later)), reference)
    with pytest.raises(Mismatch, match=weight):
        compare(step, found, reference)


def test_a_strategy_is_checked_in_one_call() -> None:
    """`check` builds a strategy and one device, in float32 too if the dtype has 16 bits; inexact ones are refused."""
    train = dataclasses.replace(TRAIN, dtype="bfloat16")
    assert check(STRATEGIES["data"], GPT, "data=2", train).gradients > 30
    compressed = STRATEGIES["data"].build(GPT, "data=2", dataclasses.replace(TRAIN, compression="int8"))
    with pytest.raises(Infeasible, match="not exact by design"):
        check_step(compressed)


def test_sums_in_bfloat16_are_no_mismatch() -> None:
    """Gradients that are summed in 16 bits are compared with looser bounds, and their float32 step with tight ones."""
    train = dataclasses.replace(TRAIN, reduce_dtype="bfloat16")
    assert agreement(STRATEGIES["data"].build(GPT, "data=4", train)).gradients > 30
    # Weights that differ by such sums send some tokens to other experts.
    step, reference = STRATEGIES["data"].build(MIXTURE, "data=2", train), single(MIXTURE, TRAIN)
    later = reference.choices[-1].copy()
    later[0, :2] += (10, -10)
    found = dataclasses.replace(reference, choices=(*reference.choices[:-1], later))
    assert compare(step, found, reference).flips == 10
    assert is_rounded(train)
    assert not is_rounded(in_float32(train))


def test_clipping_is_compared() -> None:
    """`check` clips gradients in every step: one that each device clips by its own norm is seen without options."""
    bug = next(bug for bug in norms.BUGS if bug.name == "norm-of-own-shards")
    with pytest.raises(Mismatch):
        check(bug.planted(), GPT, bug.mesh, TRAIN)


def test_evaluation_is_compared() -> None:
    """A step that trains as one device does and evaluates otherwise is seen."""
    step = built("data", "data=2", GPT)
    other = jax.jit(lambda params, tokens: params["head"]["norm"]["scale_D"].sum())
    evaluated = dataclasses.replace(step, evaluation=other)
    with pytest.raises(Mismatch, match=r"evaluated loss \S+ where one device has"):
        compare(evaluated, first_steps(evaluated, batches(GPT)), single(GPT, TRAIN))


def test_gradients_of_experts_are_as_exact_as_their_router() -> None:
    """After the first update they may differ by what rounding makes of the router's weights; before, they may not."""
    step = built("data", "data=2", MIXTURE)
    sound, reference = sound_steps(MIXTURE), single(MIXTURE, TRAIN)
    router, weight = "blocks.experts.router_DE", "blocks.experts.up_EDF"
    drifts_LU = {**reference.drifts_LU, router: np.full_like(reference.drifts_LU[router], 1e-3)}
    reference = dataclasses.replace(reference, drifts_LU=drifts_LU)

    def off(gradients: Mapping[str, Projection]) -> dict[str, Projection]:
        of = gradients[weight]
        return {**gradients, weight: dataclasses.replace(of, norm_LU=of.norm_LU * 1.0004)}

    compare(step, dataclasses.replace(sound, gradients=off(sound.gradients)), reference)
    with pytest.raises(Mismatch, match=weight):
        compare(step, dataclasses.replace(sound, of_first_step=off(sound.of_first_step)), reference)
