"""Which collectives run while the device computes: what a schedule has between their start and their end.

Two that run at once are each beside all that is between their own start and end. So what is said to be exposed is the
least that can be.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jax.sharding import Mesh

from benchmarks.devices.chips import Chip
from benchmarks.explain.roofline import bytes_per_second
from benchmarks.program.collectives import Collective, Meanwhile
from benchmarks.program.compiled import Program
from benchmarks.units import amount

HOW = ("beside_matmuls", "beside_memory", "beside_nothing", "waited_for")
SENT = tuple(f"overlap.sent_bytes.{how}" for how in HOW)
COLUMNS = (*SENT, "overlap.exposed_seconds", "overlap.text")


def overlap(program: Program, mesh: Mesh, chip: Chip | None = None) -> Mapping[str, int | float | str | None]:
    """What a device does while it sends, in a step.

    `sent_bytes` are those that it sends while it multiplies; or else, while it reads or writes its memory, for what no
    matmul is part of; or while it does neither; or it waits for them at once. `text` says so of each kind and axes,
    with the FLOPs and the bytes of memory meanwhile. `exposed_seconds` is what the collectives take longer than what
    runs meanwhile, by the chip's published figures.

    Each is None where the text of the program is in no schedule.
    """
    if not program.scheduled:
        return dict.fromkeys(COLUMNS)
    groups: dict[tuple[str, tuple[str, ...], str], Sum] = {}
    for each in program.collectives:
        groups.setdefault((each.kind, each.axes, how(each)), Sum()).add(each)
    sent = {name: sum(group.sent_bytes for key, group in groups.items() if key[2] == name) for name in HOW}
    most_first = sorted(groups.items(), key=lambda item: -item[1].sent_bytes)
    text = "; ".join(f"{kind} over {','.join(axes)}: {group.told(name)}" for (kind, axes, name), group in most_first)
    exposed = sum(each.times * exposed_seconds(each, mesh, chip) for each in program.collectives) if chip else None
    return dict(zip(COLUMNS, (*sent.values(), exposed, text), strict=True))


def how(collective: Collective) -> str:
    """What it is beside, of `HOW`."""
    if collective.meanwhile is None:
        return "waited_for"
    if collective.meanwhile.flops:
        return "beside_matmuls"
    return "beside_memory" if collective.meanwhile.memory_bytes else "beside_nothing"


def exposed_seconds(collective: Collective, mesh: Mesh, chip: Chip) -> float:
    """By which one execution takes longer than what runs meanwhile."""
    meanwhile = collective.meanwhile or Meanwhile()
    hidden = max(
        meanwhile.flops / chip.flops_per_second,
        meanwhile.memory_bytes / chip.memory_bytes_per_second,
    )
    takes = collective.sent_bytes / bytes_per_second(chip, mesh, collective.kind, collective.axes)
    return max(0.0, takes - hidden)


@dataclass
class Sum:
    """Of collectives of a kind that are beside the same: bytes sent, and what is done meanwhile, in a step."""

    sent_bytes: int = 0
    flops: int = 0
    memory_bytes: int = 0

    def add(self, each: Collective) -> None:
        """Another one, as often as it is executed."""
        meanwhile = each.meanwhile or Meanwhile()
        self.sent_bytes += each.times * each.sent_bytes
        self.flops += each.times * meanwhile.flops
        self.memory_bytes += each.times * meanwhile.memory_bytes

    def told(self, how: str) -> str:
        """In words.

        >>> Sum(39_300_000_000, 54_100_000_000_000, 12_000_000).told("beside_matmuls")
        '39.3 GB beside matmuls (54.1 TFLOP, 12 MB of memory)'
        >>> Sum(4_000_000).told("waited_for")
        '4 MB waited for'
        """
        done = [amount(self.flops, "FLOP")] if self.flops else []
        moved = [f"{amount(self.memory_bytes, 'B')} of memory"] if self.memory_bytes else []
        meanwhile = f" ({', '.join([*done, *moved])})" if done or moved else ""
        return f"{amount(self.sent_bytes, 'B')} {how.replace('_', ' ')}{meanwhile}"
