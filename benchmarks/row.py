"""A case that has ended, in plain values. JAX is not loaded to read one."""

from dataclasses import dataclass

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Row:
    """What goes into the journal and into the report.

    Attributes:
        case: the id, such as `fsdp-fsdp=8-b16`.
        extra_info: `Record.as_extra_info`.
        samples: seconds per step, one for each block; empty where none was timed.
        steps_per_block: steps that were timed as one, and blocked on once.
    """

    case: str
    extra_info: dict[str, Scalar]
    samples: tuple[float, ...]
    steps_per_block: int | None
