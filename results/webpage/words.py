"""The page's sentences. Of a run: what ran, the fastest and smallest case, the checks, and the noise. Of a search: how
many candidates fit, and the best.
"""

from typing import Any

import pandas as pd

from results.figures.search import TIMES as CANDIDATE_TIMES
from results.figures.search import counts_by_status, drawn_candidates, how_certain, tried, what_was_searched
from results.figures.tables import TIMES, attributed, reasons, widest_batch
from results.records.rows import is_counted
from results.words import NAMED, devices, joined, known_text, many, numbers, size, workload

LOUD = "This run is noisy"
"""How the sentence that warns of noise begins. The page marks it by this."""


def summary(rows: pd.DataFrame) -> list[str]:
    """Return sentences about the rows of one workload, most important first; unknown facts have no sentence."""
    sentences = [what_ran(rows), what_counts(rows)]
    if is_counted(rows).any():
        best = fastest_first(rows)
        sentences += [fastest(best), *smallest(best), *most_exposed(rows)]
    return [*sentences, *bytes_as_predicted(rows), noise(rows)]


def what_ran(rows: pd.DataFrame) -> str:
    """Say how many cases ran, on which devices, and with which workload."""
    facts, names = rows.iloc[0], rows["strategy"].unique()
    strategies = joined(names) if len(names) <= NAMED else f"{len(names)} strategies"
    return (
        f"{many(len(rows), 'case')} of {strategies} on {numbers(rows['devices'])} {devices(facts)}. "
        f"The model is {workload(facts)}; the global batch is {numbers(rows['global_batch_sequences'])} sequences."
    )


def heading(rows: pd.DataFrame) -> str:
    """Return a heading that names the models and the devices."""
    models = joined(rows["preset"].unique())
    return f"{models} on {rows['devices'].max():,.0f} {devices(rows.iloc[0])}"


def what_counts(rows: pd.DataFrame) -> str:
    """Say how many cases the curves include, and why they leave out the others."""
    if rows["kind"].eq("compiled").all():
        compiled = int(rows["status"].eq("ok").sum())
        return f"{compiled} of {len(rows)} cases were compiled; none was timed."
    counted = int(is_counted(rows).sum())
    agree = f"{counted} of {len(rows)} were timed after their losses and gradient norms agreed with those of one device"
    why = reasons(rows)
    return f"{agree}; the curves leave out the others ({why})." if why else f"{agree}."


def fastest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the counted cases on the most devices at the most common batch, highest throughput first."""
    points = rows[is_counted(rows) & rows["global_batch_sequences"].eq(widest_batch(rows))]
    points = points[points["devices"] == points["devices"].max()]
    return points.sort_values("throughput", ascending=False)


def fastest(points: pd.DataFrame) -> str:
    """Name the case with the highest throughput, and the cases whose intervals overlap with its interval."""
    first, others = points.iloc[0], points.iloc[1:]
    batch = f"a global batch of {first['global_batch_sequences']:.0f} sequences"
    where = f"On {many(int(first['devices']), 'device')} with {batch}"
    sentence = f"{where}, {case(first)} has the highest throughput: {first['throughput']:,.0f} tokens/s"
    low, high = first["throughput_low"], first["throughput_high"]
    if pd.notna(low):
        sentence += f" (95% interval {low:,.0f} to {high:,.0f})"
    close = others[others["throughput_high"] >= low]
    ratio = first["relative_to_single"]
    if pd.notna(ratio) and first["strategy"] != "single":
        sentence += f"; a step takes {ratio:.2f} times as long as that of one device with the same work"
    overlap = f" Its interval overlaps with that of {joined(case_names(close))}: this run does not tell them apart."
    return f"{sentence}.{overlap if len(close) else ''}"


def smallest(points: pd.DataFrame) -> list[str]:
    """Name the case that needs the least memory per device."""
    points = points.dropna(subset="memory").sort_values("memory")
    if points.empty:
        return []
    row = points.iloc[0]
    most_memory = f"the case that needs the most has {size(points['memory'].iloc[-1])}"
    return [f"Of these cases, {case(row)} needs the least memory: {size(row['memory'])} per device; {most_memory}."]


def most_exposed(rows: pd.DataFrame) -> list[str]:
    """Name the case that spends the largest share of its step on exposed communication."""
    points = attributed(rows)
    points = points[is_counted(points)]
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


def search_words(facts: dict[str, Any], rows: pd.DataFrame) -> list[str]:
    """Return the summary of a search as sentences in plain text."""
    fitting, large, infeasible = counts_by_status(rows)
    first = drawn_candidates(rows).iloc[0]
    words = zip(CANDIDATE_TIMES, ("by roofline", "as predicted", "as compiled", "as measured"), strict=True)
    times = ", ".join(f"{first[name]:,.0f} ms {word}" for name, word in words if pd.notna(first[name]))
    compiled, measured = (
        int(tried(rows)[name].notna().sum()) for name in ("compiled.needed_bytes", "measured.seconds")
    )
    over = int((rows["compiled.needed_bytes"] > facts["capacity_bytes"]).sum())
    return [
        f"{many(len(rows), 'candidate')} of {what_was_searched(facts)}; a device has {size(facts['capacity_bytes'])}.",
        f"By formula, {fitting:,} fit into {size(facts['usable_bytes'])}, {large:,} need more memory, "
        f"and {infeasible:,} are infeasible.",
        f"The predicted best is {first['strategy']} ({first['mesh']}): a step takes {times}. "
        f"It needs {size(first['needed_bytes'])} by formula.",
        f"{many(compiled, 'candidate')} were compiled; {over} of them did not fit. {measured} were measured.",
        how_certain(facts),
        "The roofline is the time of the matmuls at the chip's peak or of the communication, whichever is longer. As "
        "compiled, the communication that the compiler's schedule leaves exposed replaces that of the prediction.",
    ]
