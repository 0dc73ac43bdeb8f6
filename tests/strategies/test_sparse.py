"""With sparse attention every strategy computes what one device computes, to the bounds of equality.py."""

import pytest

from strategies import MeshSpec
from tests.strategies.equality import OF_MODEL, ROUNDING, assert_equal, single, train
from tests.strategies.sampling import nightly
from tests.strategies.test_equality import HARDEST
from tests.strategies.test_step import WIDEST

SPARSE = [
    *((name, HARDEST[name], {"attention_window": 5}) for name in ("context", "three_d")),
    ("context", HARDEST["context"], {"attention_stride": 4}),
    ("auto", WIDEST["auto"], {"attention_stride": 4, "attention_pattern": "fixed"}),
    ("pipeline", HARDEST["pipeline"], {"attention_stride": 4, "schedule": "zb-h1"}),
]
WHOLE = [
    ("context", HARDEST["context"], {"attention_window": 5, "context_attention": "ulysses"}),
    # Windows of one hop, of more tokens than there are before, and of none.
    *(("context", MeshSpec.parse("context=4"), {"attention_window": window}) for window in (1, 15)),
    ("context", MeshSpec.parse("context=4"), {"attention_window": 7, "remat": "full"}),
    ("context", MeshSpec.parse("context=4"), {"attention_window": 7}),
    ("three_d", MeshSpec.parse("fsdp=2,context=2,tensor=2"), {"attention_window": 6}),
    ("three_d", MeshSpec.parse("pipeline=2,context=2,tensor=2"), {"attention_window": 6, "schedule": "zb-h1"}),
    *((name, HARDEST[name], {"attention_window": 5}) for name in ("fsdp", "tensor", "pipeline")),
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
    """With a window or a stride, whether keys come from other devices or not, strategies compute what one computes."""
    microbatches = 4 if "pipeline" in mesh.sizes else 1
    reference = single(**{key: options[key] for key in options if key in OF_MODEL})
    assert_equal(train(name, mesh, microbatches=microbatches, **options), reference, ROUNDING["float32"])
