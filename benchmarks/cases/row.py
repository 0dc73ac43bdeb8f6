"""The row of a finished case in plain values. It can be read without loading JAX."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from strategies.schema import Count

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Row:
    """The row of a finished case, as stored in the journal and in the report.

    Attributes:
        case: id of the case, such as `fsdp-fsdp=8-b16`.
        extra_info: columns of the row (`Record.as_extra_info`).
        samples: seconds per step, one entry per block; empty if nothing was timed.
    """

    case: str
    extra_info: dict[str, Scalar]
    samples: tuple[Annotated[float, Meta(gt=0)], ...]
    steps_per_block: Count | None

    def __post_init__(self) -> None:
        """Refuse a row that does not say how its case ended."""
        if not isinstance(self.extra_info.get("status"), str):
            raise ValueError("a row without a status")
