"""Parts that do not fit: axes and strategies of users, schedules, kernels and formulas are refused in few words."""

# Wrong arguments are what is tested.
# pyright: reportArgumentType=false, reportCallIssue=false
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import STRATEGIES, GPTConfig, Infeasible, Step, Strategy, TrainConfig, register
from strategies.backends.backend import NO_DEVICES
from strategies.core.axis import Axis
from strategies.costs.overview import overview
from strategies.costs.predict import predict, predict_axes
from strategies.mesh import all_axes
from strategies.model.attention import QKV, kernel_for
from strategies.model.hooks import Hooks
from strategies.pipelining.orders import SCHEDULES
from strategies.pipelining.schedules import Op, Schedule
from strategies.step import Implementation
from tests.strategies.refusals import Row, assert_short, cases

CONFIG = GPTConfig(layers=2, embed=16, heads=4, vocab=31, sequence=8)
LONG = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=1024)
TRAIN = TrainConfig(batch_size=8)
TOKENS = np.zeros((8, 9), int)
KEY = jax.random.key(0)


def reducing(reduce: Callable[..., Any]) -> Step:
    """The step of a user's strategy with its own `reduce`."""
    return own(Axis("data", batch=True, implement=lambda plan: Implementation(reduce=reduce)))


def own(*axes: Axis, mesh: str = "data=2") -> Step:
    """The step of a user's strategy."""
    return Strategy("own", axes).build(CONFIG, mesh, TRAIN)


def implementing(**functions: Any) -> Step:
    """The step of a user's strategy with functions or hooks of its own."""
    return own(Axis("data", batch=True, implement=lambda plan: Implementation(**functions)))


def making(make_step: Callable[..., Any]) -> Step:
    """The step of a user's strategy that builds it in a way of its own."""
    return Strategy("exits", STRATEGIES["data"].axes, make_step=make_step).build(CONFIG, "data=1", TRAIN)


def run(step: Step) -> Any:
    """Run a step once."""
    return step(step.init(jax.random.key(0)), TOKENS)


def kernel(kind: Any, ring: int = 8, **model: Any) -> str:
    """The kernel of attention around a ring."""
    train = TrainConfig(1, dtype="bfloat16", attention=kind)
    return kernel_for(NO_DEVICES, replace(LONG, **model), train, ring=ring)


def axes_of(*contradictions: tuple[list[dict[str, Any]], str]) -> Iterator[Row]:
    """Axes that contradict themselves, or each other."""
    for fields, message in contradictions:
        axes = tuple({"name": "toy", **each} for each in fields)
        yield lambda _, axes=axes: Strategy("mine", tuple(Axis(**each) for each in axes)), message


CALLS: dict[type[Exception], list[Row]] = {
    Infeasible: [
        *(
            (lambda _, name=name, given=given: getattr(STRATEGIES["data"], name)(given), message)
            for name, given, message in (
                ("batch_shards", -1, "mesh -1; pass a MeshSpec, or a string such as"),
                ("is_usual", None, "mesh None; pass a MeshSpec"),
                ("idle_axes", "nano", "the model is 'nano'; pass a GPTConfig"),
                ("applicable", 3, "train is 3; pass a TrainConfig"),
            )
        ),
        *(
            (
                lambda _, name=name, sizes=sizes: SCHEDULES[name](*sizes),
                f"schedule {name} of {what}=0; it must be a whole number of at least 1",
            )
            for name in SCHEDULES
            for what, sizes in (("stages", (0, 2, 1)), ("microbatches", (2, 0, 1)), ("chunks", (2, 2, 0)))
        ),
        (lambda _: SCHEDULES["interleaved"](4, 6, 2), "pipeline=4 does not divide microbatches=6.* can be 4, 8, 12"),
        (lambda _: SCHEDULES["1f1b"](4, 8, 2), "1f1b has one chunk per stage, not 2; use interleaved"),
        (
            lambda _: kernel("splash"),
            "attention=splash takes chunks of a multiple of 128 tokens, not 2 x context=8 of sequence=1024; use auto",
        ),
        *(
            (
                lambda _, kind=kind: kernel(kind, attention_window=64),
                f"attention={kind} has no ring for attention_window=64; use auto or xla",
            )
            for kind in ("cudnn", "splash")
        ),
        (
            lambda _: QKV.of(*[jnp.zeros((1, 2, 4, 4))] * 3).for_devices(8),
            "devices=8 does not divide heads=4; devices can be 1, 2 or 4",
        ),
        # formulas
        (lambda _: predict("no_such", CONFIG, "data=2", TRAIN), "no_such has no formulas; .* with formulas are single"),
        (lambda _: predict("auto", CONFIG, "data=8", TRAIN), "auto has no formulas; .* with formulas are single, data"),
        (lambda _: predict("single", CONFIG, "data=2", TRAIN), "mesh data=2 has the axis data, which splits nothing"),
        *(
            (lambda _, dims=dims: predict_axes([Axis("tensor", dims=dims)], CONFIG, "tensor=2", TRAIN), message)
            for dims, message in (
                (("mlp",), "no formulas for head_features and mlp over different axes; use the same axes"),
                (("head_features",), "no formulas for head_features and mlp over different axes"),
                (("embed",), "no formulas for axes that split embed; state what they send"),
            )
        ),
        (
            lambda _: predict_axes((Axis("data", batch=True, dims=("sequence",)),), CONFIG, "data=4", TRAIN),
            "no formulas for axes that split sequence; state what they send",
        ),
        (lambda _: overview("tensor", "nano", "tensor=5"), "tensor=5 does not divide heads=8"),
        # strategies of users
        (
            lambda _: own(Axis("ring", batch=True), mesh="ring=2"),
            "ring is an axis of own, which is not registered: call `strategies.register` with it first",
        ),
        (
            lambda _: Strategy("mine", STRATEGIES["fsdp"].axes, make_step=lambda *_: None).build(
                CONFIG, "fsdp=1", replace(TRAIN, schedule="gpipe")
            ),
            "schedule=gpipe changes nothing with the axis fsdp; omit it",
        ),
    ],
    ValueError: [
        (
            lambda _: Implementation(Hooks(compiler_shards="two")),
            "`compiler_shards` of Hooks is 'two'; it must be a list",
        ),
        # names, fields and registration of users' strategies
        *(
            (lambda _, name=name, axis=axis: register(Strategy(name, (Axis(axis, batch=True),))), message)
            for name, axis, message in (
                ("fsdp", "toy", "a strategy 'fsdp' exists; choose another name"),
                ("ddp", "toy", "a strategy 'ddp' exists; choose another name"),
                ("mine", "my_axis", "'my_axis' cannot be a mesh axis; use lower-case letters only, and not 'several'"),
                ("mine", "several", "'several' cannot be a mesh axis; use lower-case letters only, and not 'several'"),
            )
        ),
        *(
            (lambda _, fields=fields: Strategy(**{"name": "mine", "axes": (), **fields}), message)
            for fields, message in (
                ({"name": "a,b"}, "cannot be called 'a,b'; take up to 50 letters"),
                ({"name": "$x$"}, r"cannot be called '\$x\$'; take up to 50 letters"),
                ({"name": 3}, "name=3; it must be a string"),
                ({"axes": "data"}, "axes='data'; it must be a list"),
                ({"make_step": "build"}, "make_step='build'; it must be a function"),
                ({"implement": "fsdp"}, "implement='fsdp'; it must be a function"),
                ({"microbatches": 0}, "microbatches=0; it must be a whole number of at least 1"),
                ({"most_devices": float("nan")}, "most_devices=nan; it must be a number of at least 0"),
            )
        ),
        (lambda _: register("fsdp"), "what is registered is 'fsdp'; pass a Strategy"),
        (lambda _: making(lambda *_: sys.exit(3)), "the build of exits raised SystemExit: 3; it must"),
        (lambda _: making(lambda *_: None), "returned is None; pass a Step"),
        (
            lambda _: Schedule("stuck", 1, 1, 1, lambda: ((Op("B", 0), Op("F", 0)),)).table,
            "stuck: .*wait for each other",
        ),
        (
            lambda _: QKV.of(*(jnp.zeros((1, 2, heads, 4)) for heads in (4, 3, 3))),
            "4 query heads cannot share 3 key heads and 3 value heads",
        ),
        *axes_of(
            ([{"batch": "yes"}], "batch='yes'; it must be true or false"),
            ([{"dims": "mlp"}], "dims='mlp'; it must be a list"),
            ([{"batch": True, "tokens": True}], "batch and tokens have the axis toy twice; omit one of them"),
            ([{"batch": True}, {"batch": True}], "batch and tokens have the axis toy twice; omit one of them"),
            ([{"shards": True}], "shards has the axis toy, which does not split the batch; add it to batch"),
            ([{"updates": True}], "updates has the axis toy, which does not split the batch; add it to batch"),
            ([{"dims": ("head",)}], "no weight has the dim 'head'; dims are layers, dense_layers, mtp_layers, "),
            (
                [{"batch": True, "shards": True}, {"name": "other", "batch": True, "updates": True}],
                "weights are sharded over toy, and so are their updates; ",
            ),
            (
                [{"batch": True, "reduce_scatter_per_microbatch": True}],
                "reduce_scatter_per_microbatch says when gradients are scattered over updates; set updates, too",
            ),
            ([{"options": ("nope",)}], "mine has the option 'nope'; it can have attention, batch_size"),
        ),
    ],
    TypeError: [
        *(
            (
                lambda _, field=field: own(Axis("data", batch=True, **{field: lambda plan: None})),
                f"what `{field}` of the axis data returned is None; pass an? {kind}",
            )
            for field, kind in (("implement", "Impl"), ("resolve", "Mapping"))
        ),
        (
            lambda _: Strategy("mine", (Axis("data", batch=True),), lambda plan, mesh: None).build(
                CONFIG, "data=2", TRAIN
            ),
            "what `implement` of mine returned is None; pass a",
        ),
        *(
            (
                lambda _, reduce=reduce: run(reducing(reduce)),
                f"`reduce` of the implementation returned {returned}; it must return two values: the terms of the loss",
            )
            for returned, reduce in {
                "None": lambda loss, grads: None,
                "a dict": lambda loss, grads: grads,
                "3 values": lambda loss, grads: (loss, grads, 0),
                "2 values": lambda loss, grads: (loss, {"blocks": grads["blocks"]}),
            }.items()
        ),
        *(
            (lambda _, name=name, value=value: implementing(**{name: value}), f"`{name}` of Implementation {message}")
            for name, value, message in (
                (
                    "forward",
                    lambda build, weights, tokens: 0,
                    r"takes \(build, weights, tokens\); pass a function of 4 arg",
                ),
                ("sum_layer", lambda: 0, r"takes \(\); pass a function of 1 argument$"),
                ("differentiate", None, "is None; pass a function of 4 arguments"),
                ("optimizer", "adam", "is 'adam'; pass a function of 1 argument"),
                ("hooks", {}, "is a dict; pass a Hooks"),
                ("inexact", None, "is None; pass a str"),
            )
        ),
        (
            lambda _: Implementation(Hooks(attend=lambda qkv: qkv)),
            r"`attend` of Hooks takes \(qkv\); pass a function of 3 arguments",
        ),
        (lambda _: Implementation(Hooks(mean=None)), "`mean` of Hooks is None; pass a function of 1 argument"),
        (
            lambda _: run(implementing(hooks=Hooks(attend=lambda *_: None))),
            "`attend` of the axis data returned None; return an array",
        ),
        (lambda _: implementing(optimizer=lambda adam: {}), "what `optimizer` of .* is a dict; pass an? Optimizer"),
        (
            lambda _: (step := implementing(forward=lambda *_: 0.0)).evaluate(step.init(KEY).params, TOKENS),
            "`forward` of the implementation returned 0.0; it must return the loss of each token, and",
        ),
        (lambda _: STRATEGIES["data"].equals("fsdp", "data=2"), "the other strategy is 'fsdp'; pass a Strategy"),
    ],
    KeyError: [(lambda _: overview("tensor", "none"), "use one of nano")],
}


@pytest.mark.parametrize(("error", "call", "message"), [*cases(CALLS)])
def test_what_does_not_fit_is_refused(error: type[Exception], call: Any, message: str, tmp_path: Path) -> None:
    """By an error that says what is wrong, the value, and what is allowed or what to do."""
    before = [*STRATEGIES], all_axes()
    assert_short(error, call, message, tmp_path)
    assert ([*STRATEGIES], all_axes()) == before
