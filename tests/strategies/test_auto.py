"""What the compiler's partitioner sends for `auto`, compared with the hand-written strategies."""

import dataclasses
from collections import Counter

import pytest

from benchmarks.program.compiled import read_program
from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from tests.strategies.laws import Case, hold
from tests.strategies.quick import compiled

CONFIG = dataclasses.replace(PRESETS["nano"], layers=2, embed=64, sequence=32, tied=False)
BATCH = 32


def sent(mesh, tied=False, model=CONFIG, **options):
    """Bytes that a device sends in a compiled step of auto, by kind and axes."""
    spec, config = MeshSpec.parse(mesh), dataclasses.replace(model, tied=tied)
    step = STRATEGIES["auto"].build(config, spec, TrainConfig(BATCH, **options))
    total = Counter()
    for each in read_program(compiled(step.lower()).as_text() or "", spec.sizes).collectives:
        total[each.kind, each.axes] += int(each.times * each.sent_bytes)
    return total


def by_hand(name, mesh, batch=BATCH, tied=False, model=CONFIG, **options):
    """Bytes that a hand-written strategy sends by its formulas, which test_laws.py tests, by kind and axes."""
    config, train = dataclasses.replace(model, tied=tied), TrainConfig(batch, **options)
    cost = predict(name, config, MeshSpec.parse(mesh), train)
    return Counter({key: sum(parts.values()) for key, parts in cost.sent.items()})


@pytest.mark.parametrize(
    ("name", "options"), [("data", {}), ("fsdp", {}), ("tensor", {}), ("tensor", {"sequence_parallel": False})], ids=str
)
def test_auto_sends_what_the_hand_written_strategy_sends(name, options):
    """auto sends what the hand-written strategy on its axis sends, with an all-reduce for each reduce-scatter, to 1%.

    The tensor axis gathers the positions' gradient instead of summing it and need not sum those of biases, fsdp gathers
    the last norm again, and the global norm is summed weight by weight.
    """
    theirs = by_hand(name, f"{name}=8", **options)
    assert sent(f"{name}=8", **options) == pytest.approx(with_all_reduces(theirs), rel=0.01)


def test_axes_together_send_each_over_its_own():
    """On fsdp x tensor each collective is over one axis: over tensor what tensor sends for its part of the batch, to
    1%.

    Over fsdp it sends what fsdp sends for the tensor shard of the weights, and up to 10% more for the weights that
    tensor replicates.
    """
    mine = sent("fsdp=2,tensor=4")
    assert {axes for _, axes in mine} == {("fsdp",), ("tensor",)}
    of_tensor = with_all_reduces(by_hand("tensor", "tensor=4", batch=BATCH // 2))
    of_fsdp = with_all_reduces(by_hand("fsdp", "fsdp=2"))
    for kind in ("all_gather", "all_reduce"):
        assert mine[kind, ("tensor",)] == pytest.approx(of_tensor[kind, ("tensor",)], rel=0.01)
        assert 1 < mine[kind, ("fsdp",)] / (of_fsdp[kind, ("fsdp",)] / 4) < 1.1


def test_rows_of_experts_are_exchanged_by_all_to_all():
    """On data x expert auto sends rows of experts as `expert` does, to the byte, and all else to 1% or 100 bytes.

    But the probabilities of the router are gathered in each layer, forward and backward, for the choice of experts.
    """
    model = dataclasses.replace(CONFIG, experts=8, expert_mlp=32, capacity_factor=1.0, balance_loss=0.01)
    mine = sent("data=2,expert=2", model=model)
    theirs = by_hand("expert", "data=2,expert=2", model=model, dispatch="all_to_all")
    probabilities = 4 * BATCH * model.sequence * 8
    assert mine.pop(("all_gather", ("data", "expert"))) == 2 * model.layers * probabilities * 3 // 4
    assert mine["all_to_all", ("expert",)] == theirs["all_to_all", ("expert",)]
    assert mine == pytest.approx(theirs, rel=0.01, abs=100)


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({"microbatches": 2}, "all of them"),
        ({"tied": True}, "the table"),
        ({"logits_bytes": 2**17}, "the table"),  # the logits of 128 of a device's 256 tokens, of 256 words each
    ],
    ids=str,
)
def test_gradients_are_all_reduced_at_each_use(options, again):
    """auto all-reduces a weight's gradient at each use, `data` once a step: exactly that many bytes more."""
    once, mine = by_hand("data", "data=4", **options).total(), sent("data=4", **options).total()
    table = 2 * 4 * CONFIG.vocab * CONFIG.embed * 3 // 4  # an all-reduce of it, in float32
    assert mine - once == {"all of them": once, "the table": table}[again]


def with_all_reduces(sent):
    """The same bytes with an all-reduce, of twice the bytes, in place of each reduce-scatter."""
    total = Counter()
    for (kind, axes), sent_bytes in sent.items():
        scattered = kind == "reduce_scatter"
        total["all_reduce" if scattered else kind, axes] += sent_bytes * (2 if scattered else 1)
    return total


def test_muon_computes_what_one_device_computes():
    """The compiler places matrices, and the update of each is that of one device."""
    hold(Case("auto", "fsdp=2,tensor=4", train={"optimizer": "muon"}))
