"""What fsdp does on v5e alone, on CPUs that are taken for v5e."""

from dataclasses import replace
from typing import Any

import pytest

from strategies import MeshSpec, fsdp, strategy
from strategies.backends.backend import CPU
from tests.strategies.equality import ROUNDING, assert_equal, single, train
from tests.strategies.sampling import nightly

CASES = [
    ("fsdp", "fsdp=4", {"remat": "full"}),
    *nightly(
        ("fsdp", "fsdp=8", {"reduce_dtype": "bfloat16", "dtype": "bfloat16"}),
        ("fsdp", "fsdp=2", {"microbatches": 2}),
        ("three_d", "fsdp=4", {"prefetch": "on"}),
    ),
]


@pytest.mark.parametrize(("name", "mesh", "options"), CASES, ids=str)
def test_weights_gathered_flat_and_attention_by_token_equal_one_device(
    name: str, mesh: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with [D,3,A] gathered as [D,3A], and attention to what is written token by token, equals one device's."""
    reference = single(**{key: options[key] for key in options if key == "dtype"})
    taken, by_token_first = [], fsdp.by_token_first
    monkeypatch.setattr(strategy, "backend_of", lambda device: replace(CPU, attends_by_token=True))
    monkeypatch.setattr(fsdp, "by_token_first", lambda x_BTCA: taken.append(x_BTCA) or by_token_first(x_BTCA))
    mine = train(name, MeshSpec.parse(mesh), **options)
    assert taken
    assert_equal(mine, reference, ROUNDING[options.get("dtype", "float32")])
