"""The summary of a run in sentences: what ran, what is fastest and smallest, what was checked, how noisy it was."""

from collections.abc import Iterable

import pandas as pd

from results.figures.canvas import byte_unit, parameters
from results.figures.curves import TIMES, attributed, counts, left_out, scaling, widest_batch

NAMED = 4
"""At most so many names in one sentence."""


def summary(rows: pd.DataFrame) -> list[str]:
    """The sentences about the rows of one workload, most important first; what is not known is not said."""
    sentences = [what_ran(rows), what_counts(rows)]
    if counts(rows).any():
        best = fastest_first(rows)
        sentences += [fastest(best), *smallest(best), *most_exposed(rows)]
    return [*sentences, *bytes_as_predicted(rows), noise(rows)]


def what_ran(rows: pd.DataFrame) -> str:
    """The cases, the devices and the workload."""
    facts = rows.iloc[0]
    return (
        f"{many(len(rows), 'case')} of {strategies(rows)} on {numbers(rows['devices'])} {devices(facts)}. "
        f"The model is {workload(facts)}; the global batch is {numbers(rows['global_batch_sequences'])} sequences."
    )


def heading(rows: pd.DataFrame) -> str:
    """The models and the devices, in a few words."""
    models = listed(rows["preset"].unique())
    return f"{models} on {rows['devices'].max():,.0f} {devices(rows.iloc[0])}"


def devices(facts: pd.Series) -> str:
    """What the devices of a row are."""
    return "virtual CPU devices" if bool(facts["virtual_devices"]) else f"devices ({facts['device_kind']})"


def strategies(rows: pd.DataFrame) -> str:
    """The names of the strategies, or how many they are."""
    names = rows["strategy"].unique()
    return listed(names) if len(names) <= NAMED else f"{len(names)} strategies"


def workload(facts: pd.Series) -> str:
    """The work that a row's step does, without its batch."""
    return (
        f"{facts['preset']} ({parameters(facts['param_count'])}), {facts['sequence_tokens']:,.0f} tokens "
        f"per sequence, {facts['dtype']}, remat {facts['remat']}"
    )


def what_counts(rows: pd.DataFrame) -> str:
    """How many cases have numbers that can be compared, and what became of the others."""
    if "kind" in rows and rows["kind"].eq("compiled").all():
        compiled = int(rows["status"].eq("ok").sum())
        return f"Nothing was timed: {compiled} of {len(rows)} cases were compiled, to see what their programs do."
    counted = int(counts(rows).sum())
    agree = f"{counted} of {len(rows)} were timed after their losses and gradient norms agreed with those of one device"
    why = ", ".join(f"{count} {reason}" for reason, count in left_out(rows).items())
    return f"{agree}; the others have no place in the curves ({why})." if why else f"{agree}."


def fastest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """The cases that count on the most devices, at the batch at which most cases count, sorted by throughput."""
    points = scaling(rows)
    points = points[points["global_batch_sequences"] == widest_batch(rows)]
    points = points[points["devices"] == points["devices"].max()]
    return points.sort_values("tokens_per_second", ascending=False)


def fastest(points: pd.DataFrame) -> str:
    """The case with the highest throughput, and which cases this run cannot tell apart from it."""
    first, others = points.iloc[0], points.iloc[1:]
    where = f"On {many(int(first['devices']), 'device')}, at a global batch of {first['global_batch_sequences']:.0f}"
    sentence = f"{where}, {case(first)} has the highest throughput: {first['tokens_per_second']:,.0f} tokens/s"
    if pd.notna(first["tokens_per_second_low"]):
        low, high = first["tokens_per_second_low"], first["tokens_per_second_high"]
        sentence += f" (95% interval {low:,.0f} to {high:,.0f})"
    alike = others[others["tokens_per_second_high"] >= first["tokens_per_second_low"]]
    untold = f" Its interval overlaps with that of {listed(map_case(alike))}: this run does not tell them apart."
    return f"{sentence}{over_single(first)}.{untold if len(alike) else ''}"


def over_single(row: pd.Series) -> str:
    """How its step time compares with that of one device on the same work."""
    ratio = row["relative_to_single"]
    if pd.isna(ratio) or row["strategy"] == "single":
        return ""
    return f"; a step takes {ratio:.2f} times as long as that of one device with the same work"


def smallest(points: pd.DataFrame) -> list[str]:
    """The case that needs the least memory per device."""
    points = points.dropna(subset="memory.total_bytes").sort_values("memory.total_bytes")
    if points.empty:
        return []
    row = points.iloc[0]
    least, most = row["memory.total_bytes"], points["memory.total_bytes"].iloc[-1]
    return [f"Of these, {case(row)} needs the least memory: {size(least)} per device; the most is {size(most)}."]


def most_exposed(rows: pd.DataFrame) -> list[str]:
    """The case that spends the largest part of its step on communication that nothing hides."""
    points = attributed(rows)
    if points.empty:
        return []
    share = points[TIMES["exposed communication"]] / points["step_seconds_median"]
    row = points.iloc[int(share.to_numpy().argmax())]
    where = f"{case(row)} at a global batch of {row['global_batch_sequences']:.0f}"
    return [f"Exposed communication takes the largest part of a step in {where}: {share.max():.0%}."]


def bytes_as_predicted(rows: pd.DataFrame) -> list[str]:
    """Whether compiled programs send what the formulas predict."""
    if "sent_as_predicted" not in rows:
        return []
    judged = rows[rows["sent_as_predicted"].isin([True, False])]
    off = judged[judged["sent_as_predicted"].eq(False)]
    if judged.empty:
        return []
    if off.empty:
        return [f"All {len(judged)} compiled steps that have formulas send exactly the bytes that these predict."]
    names = listed(map_case(off))
    return [f"{len(off)} of {len(judged)} compiled steps send other bytes than the formulas predict: {names}."]


def noise(rows: pd.DataFrame) -> str:
    """By how much the same step, timed twice, differed from itself."""
    known = rows.dropna(subset=["canary_ratio_low", "canary_ratio_high"])
    if known.empty:
        return "The noise of this run is not known: no second copy of the step on one device was timed."
    low, high = known["canary_ratio_low"].min() - 1, known["canary_ratio_high"].max() - 1
    loud = "This run is noisy. " if known["noisy"].eq(True).any() else ""
    return (
        f"{loud}The same step, timed twice in turns, differed by {low:+.1%} to {high:+.1%}; "
        "smaller differences cannot be seen in this run."
    )


def case(row: pd.Series) -> str:
    """A case in a sentence: its strategy, its mesh and its options."""
    return f"{row['strategy']} ({' '.join(filter(None, (str(row['mesh']), known_text(row.get('options')))))})"


def map_case(rows: pd.DataFrame) -> list[str]:
    """The names of several cases, each once."""
    return list(dict.fromkeys(case(row) for _, row in rows.iterrows()))


def known_text(value: object) -> str:
    """A text, or nothing.

    >>> known_text("schedule=1f1b"), known_text(None), known_text(float("nan"))
    ('schedule=1f1b', '', '')
    """
    return value if isinstance(value, str) else ""


def size(count: float) -> str:
    """Bytes, in a unit in which they read well.

    >>> size(3 * 2**29), size(3 * 2**19)
    ('1.5 GiB', '1.5 MiB')
    """
    divisor, unit = byte_unit(count)
    return f"{count / divisor:,.1f} {unit}"


def many(count: int, noun: str) -> str:
    """A count and what is counted.

    >>> many(1, "case"), many(1200, "case")
    ('1 case', '1,200 cases')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def numbers(values: Iterable[float]) -> str:
    """Different numbers, smallest first; unknown ones are left out.

    >>> numbers([8, 1, 8, float("nan")])
    '1 and 8'
    """
    return listed([f"{value:,.0f}" for value in sorted({value for value in values if pd.notna(value)})], most=12)


def listed(names: Iterable[object], most: int = NAMED) -> str:
    """Names in a sentence; beyond a number of them, how many more there are.

    >>> listed(["data"]), listed(["data", "fsdp", "tensor"]), listed("abcde", most=3)
    ('data', 'data, fsdp and tensor', 'a, b, c and 2 others')
    """
    texts = [str(name) for name in names]
    if len(texts) > most:
        texts = [*texts[:most], f"{len(texts) - most} others"]
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))
