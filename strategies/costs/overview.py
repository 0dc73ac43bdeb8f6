"""Overview of a training step: what each device holds, and what it sends, when, and along which mesh axes.

    print(overview("fsdp", "gpt2", "fsdp=4", batch_size=16))

`meshmark show` prints it, and `meshmark plot` draws it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import strategies
from strategies.arguments import require_instance
from strategies.backends.topologies import devices_of
from strategies.config import TrainConfig
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.costs.arrays import HeldArray, held_arrays
from strategies.costs.defaults import example_mesh, strategy_for, usual_mesh
from strategies.costs.exchanges import Sent, exchanges, features, united
from strategies.costs.predict import Cost, predict
from strategies.infeasible import Infeasible, WrongSize
from strategies.mesh import MeshSpec
from strategies.pipelining.schedules import Schedule
from strategies.presets import PRESETS

Formatter = Callable[[Sequence[Sequence[str]], str], Sequence[str]]
"""Lines of a table, from its rows of cells and the side, "<" or ">", on which each column is aligned."""


def _table(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Lines of a table as wide as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shapes = [f"{side}{width}" for side, width in zip(sides, widths, strict=True)]
    return ["  " + "  ".join(map(format, row, shapes)).rstrip() for row in rows]


@dataclass(frozen=True)
class Holding:
    """One kind of array that a mesh holds, and the axes that shard it.

    Attributes:
        what: batch, weights, gradients, optimizer state or activations.
        rows: axes that split the sequences of the batch, or the layers of the model; for activations, both.
        columns: axes that split the tokens of each sequence, or the features of each layer; for activations, both.
        table: axes that split the rows of the vocabulary's tables; empty for the batch and for activations.
        held_bytes: bytes of one device's shard; None if the compiler decides and no formula predicts it.
    """

    what: str
    rows: Axes
    columns: Axes
    table: Axes
    held_bytes: int | None


@dataclass(frozen=True)
class Overview:
    """What each device holds and sends in one training step of a strategy.

    Attributes:
        workload: names the model, the batch, the number of microbatches and the dtype.
        sent: what a device sends, in step order; None if the compiler decides.
        zigzag: whether a device holds an early and a late chunk of each sequence.
        schedule: the pipeline schedule; None without pipeline stages.
        idle_share: the share of a step for which a stage is idle in lockstep; None without pipeline stages.
        run_by_all_stages: options of the layers that all pipeline stages run.
        twin: if the step is written on whole arrays, the hand-written strategy that does the same; otherwise None.
        arrays: all arrays of the step; without gradients if the compiler decides how to split them.
    """

    strategy: str
    mesh: tuple[tuple[str, int], ...]
    workload: str
    held: tuple[Holding, ...]
    sent: tuple[Sent, ...] | None
    zigzag: bool
    schedule: Schedule | None
    idle_share: float | None
    run_by_all_stages: tuple[str, ...]
    twin: str | None
    arrays: tuple[HeldArray, ...]

    def as_dict(self) -> dict[str, Any]:
        """The overview as JSON values. The schedule has the format of `meshmark schedule --json`."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain | {
            "held": [dataclasses.asdict(each) for each in self.held],
            "sent": None if self.sent is None else [dataclasses.asdict(each) for each in self.sent],
            "schedule": self.schedule and self.schedule.as_dict(),
            "arrays": [dataclasses.asdict(each) for each in self.arrays],
        }

    def __str__(self) -> str:
        """Two tables: what a device holds, and what it sends."""
        return self.text(_table)

    def text(self, table: Formatter) -> str:
        """What a device holds and sends, with tables as `table` formats them."""
        held = [(each.what, _joined(each.rows + each.columns), _bytes(each.held_bytes)) for each in self.held]
        title = f"{self.strategy} on {MeshSpec(self.mesh)}: {self.workload}"
        lines = [title, "", *table([("a device holds", "split over", "bytes"), *held], "<<>"), ""]
        if self.sent is None:
            return "\n".join([*lines, f"the compiler decides what is sent; the same by hand is {self.twin}"])
        if not self.sent:
            return "\n".join([*lines, "nothing is sent"])
        sent = [(s.what, s.kind.replace("_", "-"), _joined(s.along), s.when, _bytes(s.sent_bytes)) for s in self.sent]
        total = ("all", "", "", "", _bytes(sum(each.sent_bytes for each in self.sent)))
        sends = table([("a device sends", "by", "along", "when", "bytes"), *sent, total], "<<<<>")
        return "\n".join([*lines, *sends, *self._of_stages()])

    def _of_stages(self) -> Iterator[str]:
        """What the schedule of a pipeline loses and holds, and which layers its stages do not split."""
        if (schedule := self.schedule) and self.idle_share is not None:
            yield ""
            yield f"{schedule.name}: a stage is idle for {self.idle_share:.1%} of a step in lockstep"
            yield f"a stage holds at most {schedule.most_in_flight:g} of {schedule.microbatches} microbatches"
        if self.run_by_all_stages:
            yield f"all stages run the layers of {', '.join(self.run_by_all_stages)}"

    def array_table(self, table: Formatter = _table) -> str:
        """A table of each array's dims, splitting axes, and whole and held bytes; equally split arrays share a line."""
        alike: dict[tuple[str, str, int, int], list[str]] = {}
        for each in self.arrays:
            alike.setdefault((each.name, each.split, each.whole_bytes, each.held_bytes), []).append(each.what)
        rows = [
            (name, ", ".join(kinds), split, _bytes(whole), _bytes(held))
            for (name, split, whole, held), kinds in alike.items()
        ]
        header = "array", "as", "dims / axes that split them", "bytes", "on a device"
        return "\n".join(table([header, *rows], "<<<>>"))


def overview(
    name: str,
    preset: str | None = None,
    mesh: MeshSpec | str | None = None,
    batch_size: int = 16,
    sizes: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Overview:
    """The overview of a strategy.

    Args:
        preset: name of the model; default: nano, or nano-moe on a mesh with an expert axis.
        mesh: the mesh; default: `example_mesh`.
        sizes: fields of `GPTConfig` that differ from the preset's.
        options: other fields of `TrainConfig`, shown as they are resolved; the default number of microbatches is the
            benchmarks'.
    """
    require_instance(name, str, "the strategy")
    strategy = strategies.STRATEGIES[name]
    if strategy.make_step:
        raise Infeasible(f"{name} has no formulas for what it holds and sends, because it has a `make_step`")
    mesh = MeshSpec.of(example_mesh(strategy) if mesh is None else mesh)
    preset = ("nano-moe" if "expert" in mesh.sizes else "nano") if preset is None else preset
    config = dataclasses.replace(PRESETS[require_instance(preset, str, "the preset")], **sizes)
    train = TrainConfig(batch_size, **{"microbatches": strategy.default_microbatches(mesh, batch_size), **options})
    cost = predict(name, config, mesh, train) if strategy.has_formulas else None
    plan = cost.plan if cost else Plan.of(strategy.axes, config, mesh, train)
    tokens = f"{batch_size} × {config.sequence:,} tokens"
    given = texts(
        {option: getattr(plan.train, option) for option in options if option not in ("microbatches", "dtype")}
    )
    arrays = tuple(each for each in held_arrays(plan) if cost or each.what != "gradient")
    return Overview(
        strategy=name,
        mesh=mesh.axes,
        workload=", ".join(
            (",".join([preset, *texts(sizes)]), tokens, f"microbatches={train.microbatches}", train.dtype, *given)
        ),
        held=tuple(holdings(plan, cost, arrays)),
        sent=cost and tuple(exchanges(cost)),
        zigzag=cost is not None and cost.plan.share.zigzag,
        schedule=plan.schedule if plan.staged else None,
        idle_share=plan.schedule.lost(cost.passes) if cost and plan.staged else None,
        run_by_all_stages=tuple(plan.run_by_all_stages),
        twin=strategy.twins.get(mesh.split_axes(strategy.axis_names)),
        arrays=arrays,
    )


def texts(fields: Mapping[str, Any]) -> list[str]:
    """Fields as they are written in a command."""
    return [f"{name}={value}" for name, value in fields.items()]


def asked_overview(
    name: str,
    preset: str | None,
    mesh: str | None,
    topology: str | None,
    batch_size: int | None,
    **options: Any,
) -> Overview:
    """The overview for a command line: of a mesh, of a topology's devices, of both, or of an example.

    Args:
        name: name of the strategy; on a mesh with axes that it lacks, `strategy_for` resolves it.
        preset: name of the model; default: as for `overview`.
        mesh: the mesh as a string; default: the usual mesh of the topology's devices, or `example_mesh`.
        topology: as `devices_of` reads it; None for any devices.
        batch_size: sequences in the global batch; default: 16, or one per device of the topology.
        options: as for `overview`, `sizes` too.
    """
    devices = None if topology is None else devices_of(topology)
    spec = None if mesh is None else MeshSpec.of(mesh)
    if devices is not None:
        spec = spec or usual_mesh(strategies.STRATEGIES[name], devices)
        if spec.size != devices:
            raise Infeasible(f"mesh {spec} uses {spec.size} devices; it must use all {devices} of {topology}")
    batch_size = (devices or 16) if batch_size is None else batch_size
    try:
        return overview(strategy_for(name, spec) if spec else name, preset, spec, batch_size, **options)
    except WrongSize as error:
        if devices is None or mesh is not None:
            raise
        problem = f"the usual mesh of {topology} is {spec}, and {error.problem}"
        raise Infeasible(f"{problem}; name another mesh or another topology") from error


def holdings(plan: Plan, cost: Cost | None, arrays: Iterable[HeldArray]) -> Iterator[Holding]:
    """The kinds of arrays that a device holds: batch, weights, accumulated gradients, optimizer state and activations.

    Activations are the estimated residuals (`memory.temporaries`). `cost` is None without formulas.
    """
    held_bytes: Mapping[str, int] = cost.arguments if cost else {}
    placement, shards, updates = plan.placement, plan.placement.shards, plan.placement.updates
    rows, table = placement.dims.get("layers", ()), placement.dims.get("vocab", ())
    splitting = {axis for weight in plan.weights.values() for axis in weight.axes}
    columns = tuple(axis for axis in features(placement) if axis in splitting)
    kept_parts = shards if plan.train.gather == "layer" else ()
    summed = updates if plan.scatters_microbatches else kept_parts
    grads = sum(each.held_bytes for each in arrays if each.what == "gradient") if cost else None
    yield Holding("batch", placement.batch, placement.tokens, (), held_bytes.get("batch"))
    yield Holding("weights", rows, columns + shards, table + shards, held_bytes.get("parameters"))
    yield Holding("gradients", rows, united(columns, summed), table + summed, grads)
    moments = shards + updates
    yield Holding("optimizer state", rows, united(columns, moments), table + moments, held_bytes.get("optimizer"))
    kept = cost.temporaries["activations"] if cost else None
    split = placement.tokens + tuple(axis for axis in columns if axis not in placement.batch)
    yield Holding("activations", placement.batch + rows, split, (), kept)


def _joined(axes: Axes) -> str:
    return " x ".join(axes) or "-"


def _bytes(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"
