"""With sparse attention every strategy computes what one device computes, to the bounds of equality.py."""

import pytest

from strategies import MeshSpec
from strategies.costs.predict import predict
from tests.strategies.costs.steps import by_axes, compiled_step, sent
from tests.strategies.equality import CONFIG, OF_MODEL, ROUNDING, assert_equal, build, single, train
from tests.strategies.sampling import nightly
from tests.strategies.test_equality import HARDEST
from tests.strategies.test_step import WIDEST

TURNS = {"attention_window": 3, "full_attention_every": 2}
"""Every second layer has no window, and around a ring others get keys from both neighbours."""
SPARSE = [("context", HARDEST["context"], {"attention_stride": 4})]
WHOLE = [
    ("context", MeshSpec.parse("context=2"), TURNS),
    ("fsdp", HARDEST["fsdp"], {"attention_window": 5}),
    *((name, HARDEST[name], TURNS) for name in ("fsdp", "three_d", "tensor", "zero2")),
    ("pipeline", MeshSpec.parse("pipeline=4"), TURNS),  # 8 layers are 4 blocks, and a stage has one or more
    ("context", MeshSpec.parse("context=4"), {**TURNS, "attention_window": 2, "remat": "full"}),
    ("context", HARDEST["context"], {**TURNS, "context_attention": "ulysses"}),
    ("context", MeshSpec.parse("context=2"), {**TURNS, "full_attention_every": 4}),
    ("context", HARDEST["context"], {"attention_window": 5}),
    ("auto", WIDEST["auto"], {"attention_stride": 4, "attention_pattern": "fixed"}),
    ("pipeline", HARDEST["pipeline"], {"attention_stride": 4, "schedule": "zb-h1"}),
    ("context", HARDEST["context"], {"attention_window": 5, "context_attention": "ulysses"}),
    # Windows of one hop, of more tokens than there are before, and of none.
    *(("context", MeshSpec.parse("context=4"), {"attention_window": window}) for window in (1, 15)),
    ("context", MeshSpec.parse("context=4"), {"attention_window": 7, "remat": "full"}),
    ("context", MeshSpec.parse("context=4"), {"attention_window": 7}),
    ("three_d", MeshSpec.parse("fsdp=2,context=2,tensor=2"), {"attention_window": 6}),
    ("three_d", MeshSpec.parse("pipeline=2,context=2,tensor=2"), {"attention_window": 6, "schedule": "zb-h1"}),
    *((name, HARDEST[name], {"attention_window": 5}) for name in ("three_d", "tensor", "pipeline")),
] + [
    (name, HARDEST[name], options)
    for name in HARDEST
    for options in (
        {"attention_window": 4},
        {"attention_stride": 4},
        {"attention_stride": 8, "attention_pattern": "fixed", "attention_summary": 2},
    )
]
"""More windows, and every strategy with every pattern."""


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [*SPARSE, *nightly(*WHOLE)],
    ids=str,
)
def test_sparse_attention_equals_one_device(name, mesh, options):
    """With a window or a stride, whether keys come from other devices or not, strategies compute what one computes.

    And they send, to the byte, what the formulas say.
    """
    options = {"microbatches": 4 if "pipeline" in mesh.sizes else 1, **options}
    reference = single(**{key: options[key] for key in options if key in OF_MODEL})
    assert_equal(train(name, mesh, **options), reference, ROUNDING["float32"])
    if name != "auto":  # nothing is predicted of what the compiler partitions
        step = build(name, mesh, **options)
        program, _ = compiled_step(step)
        assert sent(program) == by_axes(predict(name, step.config, mesh, step.train))


@pytest.mark.parametrize(
    ("name", "mesh"),
    [(name, HARDEST[name]) if name == "context" else nightly((name, HARDEST[name]))[0] for name in HARDEST],
)
def test_a_window_of_the_sequence_is_dense_to_the_bit(name, mesh):
    """Under every strategy it is the program of dense attention, to the letter."""
    microbatches = 4 if "pipeline" in mesh.sizes else 1
    whole, dense = (
        build(name, mesh, microbatches=microbatches, **options).lower().as_text()
        for options in ({"attention_window": CONFIG.sequence}, {})
    )
    assert whole == dense
