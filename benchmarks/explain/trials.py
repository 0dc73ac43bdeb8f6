"""Other values of options for a compiled step: what each would save, by the replay of its schedule.

Formulas do not know these options' effect on a schedule. So they are not searched, but compiled for one step alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.cases.case import Case, option_texts, options_of
from benchmarks.cli.tables import aligned, wrapped
from benchmarks.devices.chips import GIB

TRIED = {"reduce_dtype": ("bfloat16",), "unroll": (1, 2, 4)}
"""Options -> values to try, other than that of the step."""
INEXACT = "reduce_dtype=bfloat16 rounds sums of gradients to bfloat16: compare losses before you rely on it"


class Trial(NamedTuple):
    """A step with other values of options.

    Attributes:
        case: the step.
        changes: its options that differ from those of the best, or its mesh and compiler options.
        seconds: of the compiled step; None if it was not compiled, does not fit or was not replayed.
        needed_bytes: memory of a device, as compiled.
        reason: why there is no time.
    """

    case: Case
    changes: Mapping[str, Any]
    seconds: float | None
    needed_bytes: int | None
    reason: str

    def as_row(self, before_seconds: float) -> dict[str, Any]:
        """JSON values; `before_seconds` is the time of the best."""
        saves = None if self.seconds is None else 1 - self.seconds / before_seconds
        return {
            "options": dict(self.changes),
            "compiled_seconds": self.seconds,
            "saves": saves,
            "needed_bytes": self.needed_bytes,
            "reason": self.reason,
        }


Compile = Callable[[Sequence[Case]], Iterable[tuple[Case, float | None, int | None, str]]]
"""Compiles cases, and gives of each its seconds, the memory of a device, and why there is no time."""


def trials(
    best: Case,
    before_seconds: float,
    compile_cases: Compile,
    given: Iterable[str] = (),
    others: Iterable[Mapping[str, Any]] = (),
) -> list[Trial]:
    """Steps with one other value each, and then one with the best value of every option that saved time.

    Args:
        best: the best step as compiled.
        before_seconds: its time.
        compile_cases: compiles other steps.
        given: options whose values the user named; they keep them.
        others: fields of `Case` that change, each a trial of its own, which is not combined with others.

    Returns:
        All of them, the fastest first, and last those without time.
    """
    single = [{name: value} for name, values in varied(best, given).items() for value in values]
    found = _compiled([(_with_options(best, changes), changes) for changes in single], compile_cases)
    faster: dict[str, Any] = {}
    for trial in reversed(_sorted(found)):  # of each option, its fastest value comes last
        if trial.seconds is not None and trial.seconds < before_seconds:
            faster |= trial.changes
    further: list[tuple[Case, Mapping[str, Any]]] = [(replace(best, **changes), changes) for changes in others]
    if len(faster) > 1:
        all_faster = {name: faster[name] for name in TRIED if name in faster}
        further.append((_with_options(best, all_faster), all_faster))
    return _sorted([*found, *_compiled(further, compile_cases)])


def varied(best: Case, given: Iterable[str] = ()) -> dict[str, tuple[Any, ...]]:
    """Options of a step that are worth a trial, with their other values.

    A step in float32 keeps its sums in float32, and one with compression sends no sums. Iterations of a loop have as
    many layers each, so `unroll` divides the layers, and there are two iterations at least.
    """
    train = best.resolved
    known = {name for name in options_of(best.strategy) if name in TRIED} - {*given}
    others = {
        name: tuple(value for value in values if value != getattr(train, name))
        for name, values in TRIED.items()
        if name in known
    }
    if best.dtype == "float32" or train.compression != "none":
        others["reduce_dtype"] = ()
    layers = best.config.layers
    others["unroll"] = tuple(n for n in others.get("unroll", ()) if n < layers and layers % n == 0)
    return {name: values for name, values in others.items() if values}


def _with_options(case: Case, options: Mapping[str, Any]) -> Case:
    return replace(case, options=tuple({**dict(case.options), **options}.items()))


def _compiled(tried: Sequence[tuple[Case, Mapping[str, Any]]], compile_cases: Compile) -> list[Trial]:
    """Compile steps, each with what it changes."""
    changes = dict(tried)
    outcomes = compile_cases(list(changes)) if changes else ()
    return [Trial(case, changes[case], seconds, needed, reason) for case, seconds, needed, reason in outcomes]


def _sorted(found: Sequence[Trial]) -> list[Trial]:
    return sorted(found, key=lambda trial: (trial.seconds is None, trial.seconds or 0.0))


def trial_lines(best: Case, before_seconds: float, found: Sequence[Trial]) -> list[str]:
    """The lines about other values of options; empty if none were tried."""
    if not found:
        return []
    rows: list[tuple[str, ...]] = [("other options", "ms", "saves", "GiB", "")]
    for trial in found:
        ms = "" if trial.seconds is None else f"{1e3 * trial.seconds:,.1f}"
        saves = "" if trial.seconds is None else f"{1 - trial.seconds / before_seconds:.1%}"
        held = "" if trial.needed_bytes is None else f"{trial.needed_bytes / GIB:.1f}"
        rows.append((_text(trial.changes), ms, saves, held, trial.reason))
    title = f"{best.strategy} {best.mesh} takes {1e3 * before_seconds:,.1f} ms as compiled; with other options it takes"
    inexact = INEXACT if any("reduce_dtype" in trial.changes for trial in found) else ""
    return [*wrapped(title), *aligned(rows, ["<", *">" * 3, "<"]), *(wrapped(inexact) if inexact else [])]


def _text(changes: Mapping[str, Any]) -> str:
    if "compiler_options" in changes:
        return "the compiler options above"
    return " ".join(option_texts(tuple(changes.items())))
