"""Types of the columns of a row of a run, which is the `extra_info` of a benchmark."""

from functools import cache
from typing import Any

from strategies.schema import Amount, Count, Number, Positive, Scalar

TEXTS = (
    *("kind", "reason", "strategy", "mesh", "options", "platform", "device_kind", "topology"),
    *("preset", "dtype", "remat", "attention_pattern", "compiled.hash", "compiled.dtypes"),
)
FLAGS = "virtual_devices", "matches_single", "noisy", "sent_as_predicted"
COUNTS = "devices", "param_count", "global_batch_sequences", "sequence_tokens", "microbatches"
TIMES = (
    *("tokens_per_second", "step_seconds_median", "step_seconds_low", "step_seconds_high"),
    *("relative_to_single", "relative_to_single_low", "relative_to_single_high"),
    *("canary_ratio_low", "canary_ratio_high"),
)
MORE_TIMES = (
    *("tokens_per_second_per_device", "canary_ratio"),
    *("relative_to_twin", "relative_to_twin_low", "relative_to_twin_high"),
)
"""Those that the figures do not need."""
ATTRIBUTED = tuple(
    f"attribution.{part}_seconds"
    for part in (
        *("compute", "exposed_communication", "schedule_bubble", "lockstep_bubble"),
        *("recomputation", "optimizer", "dispatch"),
    )
)
MEMORY = tuple(
    f"memory.{part}_bytes" for part in ("argument", "parameter", "optimizer", "temp", "output", "alias", "total")
)
TYPES: dict[str, Any] = {
    "schema_version": int,
    "status": str,
    **dict.fromkeys(TEXTS, str | None),
    **dict.fromkeys(FLAGS, bool | None),
    **dict.fromkeys((*COUNTS, "processes"), Count | None),
    **dict.fromkeys(("attention_window", "attention_stride", "attention_summary"), Count | None),
    **dict.fromkeys((*TIMES, *MORE_TIMES), Positive | None),
    **dict.fromkeys((*ATTRIBUTED, "predicted.bubble", "predicted.lockstep_bubble"), Number | None),
    **dict.fromkeys(("predicted.argument_bytes", "predicted.temp_bytes"), Amount | None),
}
"""Types by name; None means that a value is unknown."""


@cache
def type_of(name: str) -> Any:
    """Return the type of a column. All of a compiled program and of its memory are amounts, also along your own axes.

    >>> type_of("noisy"), type_of("compiled.sent_bytes.permute.toy") == Amount | None
    (bool | None, True)
    """
    amount = name.startswith(("compiled.", "memory."))
    return TYPES.get(name, Amount | None if amount else Scalar)
