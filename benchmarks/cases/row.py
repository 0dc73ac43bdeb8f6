"""The row of a finished case in plain values. It can be read without loading JAX."""

from dataclasses import dataclass

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Row:
    """The row of a finished case, as stored in the journal and in the report.

    Attributes:
        case: id of the case, such as `fsdp-fsdp=8-b16`.
        extra_info: columns of the row (`Record.as_extra_info`).
        samples: seconds per step, one entry per block; empty if nothing was timed.
        steps_per_block: number of consecutive steps in a block, which is synchronised once at its end.
    """

    case: str
    extra_info: dict[str, Scalar]
    samples: tuple[float, ...]
    steps_per_block: int | None
