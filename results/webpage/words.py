"""The page's summary of a run in sentences: what ran, the fastest and smallest case, the checks, and the noise."""

from collections.abc import Iterable

import pandas as pd

from results.figures.canvas import byte_unit, parameters
from results.figures.curves import TIMES, attributed, is_counted, left_out, scaling, widest_batch

LOUD = "This run is noisy"
"""How the sentence that warns of noise begins. The page marks it by this."""
NAMED = 4
"""Most names that one sentence lists."""


def summary(rows: pd.DataFrame) -> list[str]:
    """Return sentences about the rows of one workload, most important first; unknown facts have no sentence."""
    sentences = [what_ran(rows), what_counts(rows)]
    if is_counted(rows).any():
        best = fastest_first(rows)
        sentences += [fastest(best), *smallest(best), *most_exposed(rows)]
    return [*sentences, *bytes_as_predicted(rows), noise(rows)]


def what_ran(rows: pd.DataFrame) -> str:
    """Say how many cases ran, on which devices, and with which workload."""
    facts = rows.iloc[0]
    return (
        f"{many(len(rows), 'case')} of {strategies(rows)} on {numbers(rows['devices'])} {devices(facts)}. "
        f"The model is {workload(facts)}; the global batch is {numbers(rows['global_batch_sequences'])} sequences."
    )


def heading(rows: pd.DataFrame) -> str:
    """Return a heading that names the models and the devices."""
    models = joined(rows["preset"].unique())
    return f"{models} on {rows['devices'].max():,.0f} {devices(rows.iloc[0])}"


def devices(facts: pd.Series) -> str:
    """Say whether a row's devices are virtual, or name their kind."""
    return "virtual CPU devices" if bool(facts["virtual_devices"]) else f"devices ({facts['device_kind']})"


def strategies(rows: pd.DataFrame) -> str:
    """Name the strategies, or count them if they are too many to list."""
    names = rows["strategy"].unique()
    return joined(names) if len(names) <= NAMED else f"{len(names)} strategies"


def workload(facts: pd.Series) -> str:
    """Describe the workload of a row: model, sequence length, dtype and remat, but not the batch."""
    return (
        f"{facts['preset']} ({parameters(facts['param_count'])}), {facts['sequence_tokens']:,.0f} tokens "
        f"per sequence, {facts['dtype']}, remat {facts['remat']}"
        f"{', ' + facts['attention'] if facts['attention'] else ''}"
        f"{', routing=' + facts['forced'] if facts['forced'] else ''}"
    )


def what_counts(rows: pd.DataFrame) -> str:
    """Say how many cases the curves include, and why they leave out the others."""
    if rows["kind"].eq("compiled").all():
        compiled = int(rows["status"].eq("ok").sum())
        return f"{compiled} of {len(rows)} cases were compiled; none was timed."
    counted = int(is_counted(rows).sum())
    agree = f"{counted} of {len(rows)} were timed after their losses and gradient norms agreed with those of one device"
    why = ", ".join(f"{count} {reason}" for reason, count in left_out(rows).items())
    return f"{agree}; the curves leave out the others ({why})." if why else f"{agree}."


def fastest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the counted cases on the most devices at the most common batch, highest throughput first."""
    points = scaling(rows)
    points = points[points["global_batch_sequences"] == widest_batch(rows)]
    points = points[points["devices"] == points["devices"].max()]
    return points.sort_values("tokens_per_second", ascending=False)


def fastest(points: pd.DataFrame) -> str:
    """Name the case with the highest throughput, and the cases whose intervals overlap with its interval."""
    first, others = points.iloc[0], points.iloc[1:]
    batch = f"a global batch of {first['global_batch_sequences']:.0f} sequences"
    where = f"On {many(int(first['devices']), 'device')} with {batch}"
    sentence = f"{where}, {case(first)} has the highest throughput: {first['tokens_per_second']:,.0f} tokens/s"
    if pd.notna(first["tokens_per_second_low"]):
        low, high = first["tokens_per_second_low"], first["tokens_per_second_high"]
        sentence += f" (95% interval {low:,.0f} to {high:,.0f})"
    alike = others[others["tokens_per_second_high"] >= first["tokens_per_second_low"]]
    overlap = f" Its interval overlaps with that of {joined(case_names(alike))}: this run does not tell them apart."
    return f"{sentence}{over_single(first)}.{overlap if len(alike) else ''}"


def over_single(row: pd.Series) -> str:
    """Compare a row's step time with that of one device on the same work; empty where that is unknown."""
    ratio = row["relative_to_single"]
    if pd.isna(ratio) or row["strategy"] == "single":
        return ""
    return f"; a step takes {ratio:.2f} times as long as that of one device with the same work"


def smallest(points: pd.DataFrame) -> list[str]:
    """Name the case that needs the least memory per device."""
    points = points.dropna(subset="memory.total_bytes").sort_values("memory.total_bytes")
    if points.empty:
        return []
    row = points.iloc[0]
    least, most = row["memory.total_bytes"], points["memory.total_bytes"].iloc[-1]
    most_memory = f"the case that needs the most has {size(most)}"
    return [f"Of these cases, {case(row)} needs the least memory: {size(least)} per device; {most_memory}."]


def most_exposed(rows: pd.DataFrame) -> list[str]:
    """Name the case that spends the largest share of its step on exposed communication."""
    points = attributed(rows)
    if points.empty:
        return []
    share = points[TIMES["exposed communication"]] / points["step_seconds_median"]
    row = points.iloc[int(share.to_numpy().argmax())]
    where = f"{case(row)} with a global batch of {row['global_batch_sequences']:.0f} sequences"
    return [f"Exposed communication takes the largest share of a step in {where}: {share.max():.0%}."]


def bytes_as_predicted(rows: pd.DataFrame) -> list[str]:
    """Say whether compiled programs send the bytes that the formulas predict."""
    judged = rows[rows["sent_as_predicted"].isin([True, False])]
    off = judged[judged["sent_as_predicted"].eq(False)]
    if judged.empty:
        return []
    if off.empty:
        return [f"All {len(judged)} compiled steps that have formulas send exactly the predicted bytes."]
    names = joined(case_names(off))
    return [f"{len(off)} of {len(judged)} compiled steps do not send the bytes that the formulas predict: {names}."]


def noise(rows: pd.DataFrame) -> str:
    """Say by how much two copies of the step on one device, timed interleaved, differed."""
    known = rows.dropna(subset=["canary_ratio_low", "canary_ratio_high"])
    if known.empty:
        return "The noise of this run is unknown: no second copy of the step on one device was timed."
    low, high = known["canary_ratio_low"].min() - 1, known["canary_ratio_high"].max() - 1
    loud = f"{LOUD}. " if known["noisy"].eq(True).any() else ""
    return (
        f"{loud}Two copies of the same step, timed interleaved, differed by {low:+.1%} to {high:+.1%}; "
        "this run cannot resolve smaller differences."
    )


def case(row: pd.Series) -> str:
    """Name a case in a sentence by its strategy, mesh and options."""
    return f"{row['strategy']} ({' '.join(filter(None, (str(row['mesh']), known_text(row.get('options')))))})"


def case_names(rows: pd.DataFrame) -> list[str]:
    """Return the names of several cases, each once."""
    return list(dict.fromkeys(case(row) for _, row in rows.iterrows()))


def known_text(value: object) -> str:
    """Return a text, or "" for any other value.

    >>> known_text("schedule=1f1b"), known_text(None), known_text(float("nan"))
    ('schedule=1f1b', '', '')
    """
    return value if isinstance(value, str) else ""


def size(count: float) -> str:
    """Format bytes in MiB or GiB.

    >>> size(3 * 2**29), size(3 * 2**19)
    ('1.5 GiB', '1.5 MiB')
    """
    divisor, unit = byte_unit(count)
    return f"{count / divisor:,.1f} {unit}"


def many(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> many(1, "case"), many(1200, "case")
    ('1 case', '1,200 cases')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def numbers(values: Iterable[float]) -> str:
    """List the distinct known numbers, smallest first.

    >>> numbers([8, 1, 8, float("nan")])
    '1 and 8'
    """
    return joined([f"{value:,.0f}" for value in sorted({value for value in values if pd.notna(value)})], most=12)


def joined(names: Iterable[object], most: int = NAMED) -> str:
    """List names in a sentence; beyond the first `most`, count the others.

    >>> joined(["data"]), joined(["data", "fsdp", "tensor"]), joined("abcde", most=3)
    ('data', 'data, fsdp and tensor', 'a, b, c and 2 others')
    """
    texts = [str(name) for name in names]
    if len(texts) > most:
        texts = [*texts[:most], f"{len(texts) - most} others"]
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))
