"""Draws what other commands write: runs, training logs, searches, traces, predictions, overviews, schedules.

meshmark plot runs/NAME.json [--out DIR]
meshmark show fsdp --json | meshmark plot - --out fsdp.png
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.cli.ending import Refused
from benchmarks.cli.outputs import (
    is_picture,
    require_apart,
    require_folder,
    require_picture,
    safe_name,
    save,
    save_text,
)
from results.figures.communication import communication
from results.figures.experts import predicted_time_vs_tokens
from results.figures.lanes import lanes
from results.figures.pictures import draw, themed
from results.figures.runs import Drawing, draw_all, drawings_of_run, drawings_of_training
from results.figures.scaling import figure_of as scaling_figure
from results.figures.search import figure_of as search_figure
from results.figures.shards import MOST_DEVICES, shards
from results.figures.timeline import timeline
from results.records import overviews, schedules, traces
from results.records.documents import read_search
from results.records.reading import RecordError
from results.records.rows import load
from results.records.training import SUFFIX, read_training
from results.reports.predictions import write_page
from strategies.files import decode_json, read_json, read_text, shown

STDIN = Path("-")
PRINTED_BY = "print one with `meshmark schedule NAME ... --json` or `meshmark show STRATEGY --json`"
OF_SEVERAL_FILES = "run", "training", "search"
"""Kinds of which several files are drawn together."""
DRAWINGS = {
    "run": lambda options: drawings_of_run(load(options.files), options.batch_size),
    "training": lambda options: drawings_of_training(read_training(options.files)),
}
"""Kinds of which there may be several figures -> the options of the command -> the figures, not drawn yet."""
DRAWN = "name a file of `measure --benchmark-json`, `train`, `search --json`, `show --json` or `schedule --json`"
READ = ".jsonl", ".json", ".csv"
"""Suffixes of files that are drawn."""
OF_TEXT = "schedule", "overviews"
"""Kinds that commands print, too."""
BY_KEY = {"otherData": "trace", "schedule": "schedule"}
"""Keys of JSON objects that tell their kind."""
BY_NAME = {"search": "search", "feasibility": "search", "scaling": "search"}
"""Names by which JSON objects tell their kind, two of them of older versions, which `read_search` refuses as such."""
DPI = {"schedule": 144}
"""Resolution in dots per inch, where it is not 150."""


def plot_overviews(text: str, where: str, folder: Path) -> list[Path]:
    """Draw what each device of some strategies holds and sends, and return the paths written."""
    found = overviews.read(text, where)
    paths = [folder / f"{safe_name(overview.strategy)}.svg" for overview in found]
    for overview, path in zip(found, paths, strict=True):
        save_text(path, communication(overview))
    return paths


def read_stdin() -> str:
    """Return the text on stdin."""
    if sys.stdin is None:
        raise RecordError("stdin is closed")
    if sys.stdin.isatty():
        raise RecordError("stdin is the terminal, not the output of a command")
    try:
        return sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"stdin is not text ({error})") from error


def kind_of(path: Path, text: str) -> str:
    """What a file is: a run, unless its name or its content says otherwise. `text` is what stdin has."""
    if path.is_dir():
        with suppress(OSError):
            if found := sorted(each for each in path.iterdir() if each.suffix in READ):
                raise Refused(f"{shown(path)} is a folder, and files are drawn; name one, such as {shown(found[0])}")
    if path.suffix in (SUFFIX, ".csv"):
        return "training" if path.suffix == SUFFIX else "predictions"
    if path == STDIN:
        return kind_of_output(text)
    content = read_json(path, DRAWN)
    if isinstance(content, list) and content and isinstance(content[0], dict):
        return "overviews"
    if not isinstance(content, dict):
        return "run"
    by_key = next((kind for key, kind in BY_KEY.items() if key in content), "")
    return by_key or BY_NAME.get(str(content.get("kind")), "run")


def kind_of_output(text: str) -> str:
    """Whether a command has printed overviews or a schedule."""
    content = decode_json(text, "stdin")
    if isinstance(content, list) or (isinstance(content, dict) and "schedule" in content):
        return "overviews" if isinstance(content, list) else "schedule"
    raise RecordError("stdin has neither a schedule nor overviews")


def several(
    kind: str, options: argparse.Namespace, text: str, drawings: Sequence[Drawing]
) -> Callable[[Path], list[Path]] | None:
    """What draws pictures into a folder, and returns the paths written; None where one picture is written."""
    first, out = options.files[0], options.out
    if kind == "predictions":
        return partial(write_page, first)
    if kind == "overviews" and out and not out.suffix:
        return partial(plot_overviews, text, shown(first))
    return partial(draw_all, drawings) if drawings and not (out and is_picture(out)) else None


def only(drawings: Sequence[Drawing], out: Path) -> Figure:
    """The one figure that is drawn into a file."""
    if len(drawings) > 1:
        names = ", ".join(drawing.name for drawing in drawings)
        problem = f"{shown(out)} is one picture, and there are {len(drawings)} of these files ({names})"
        raise Refused(f"{problem}; name a folder as --out, and take one of them from there")
    return drawings[0].figure()


def picture_of(kind: str, paths: Sequence[Path], text: str, between_ms: tuple[float, float] | None) -> Figure:
    """Draw a file of which there is one picture, or several searches."""
    path = paths[0]
    where = "stdin" if path == STDIN else shown(path)
    if kind == "trace":
        return lanes(traces.read(path), between_ms)
    if kind == "schedule":
        return timeline(schedules.read(text, where))
    if kind == "overviews":
        found = overviews.read(text, where, MOST_DEVICES)
        if len(found) > 1:
            raise RecordError(f"{where} has {len(found)} overviews, and a picture is of one; give a folder as --out")
        return shards(found[0])
    if len(paths) > 1:
        return predicted_time_vs_tokens([*map(read_search, paths)])
    facts, rows = read_search(path)
    return scaling_figure(facts, rows) if rows["scaling"].notna().any() else search_figure(facts, rows)


def require_effect(options: argparse.Namespace, kinds: Sequence[str]) -> None:
    """Check that files can be drawn together, and that all options have an effect."""
    if len({*kinds}) > 1:
        first, other = options.files[0], options.files[[kind != kinds[0] for kind in kinds].index(True)]
        problem = f"{shown(first)} is of the kind {kinds[0]}, and {shown(other)} is not"
        raise Refused(f"{problem}; plot them apart")
    if len(kinds) > 1 and kinds[0] not in OF_SEVERAL_FILES:
        raise Refused(f"a picture is of one {kinds[0]}; plot the {len(kinds)} files apart")
    if options.batch_size and kinds[0] != "run":
        raise Refused(f"--batch-size chooses among measured cases, and this is of the kind {kinds[0]}; leave it out")
    if options.between and kinds[0] != "trace":
        raise Refused(f"--between is a part of a trace, and this is of the kind {kinds[0]}; leave it out")
    if options.files[0] == STDIN and not options.out:
        raise Refused("what is on stdin has no name; give --out, which names the picture")


def main(options: argparse.Namespace) -> None:
    """Draw files of one kind, and print the paths of the pictures."""
    try:
        print(*drawn(options), sep="\n")
    except RecordError as error:
        raise RecordError(f"{error}; {PRINTED_BY}" if options.files[0] == STDIN else str(error)) from error


def drawn(options: argparse.Namespace) -> list[Path]:
    """Draw files of one kind, and return the paths written. Errors are those of `main`."""
    first, inputs = options.files[0], [path for path in options.files if path != STDIN]
    text = read_stdin() if STDIN in options.files else ""
    kinds = [kind_of(path, text) for path in options.files]
    require_effect(options, kinds)
    kind, paths, out = kinds[0], list[Path](), options.out
    if inputs and kind in OF_TEXT:
        text = read_text(first)
    drawings = DRAWINGS[kind](options) if kind in DRAWINGS else []
    if into := several(kind, options, text, drawings):
        out = out or first.with_name(f"{first.stem}-figures")  # the hyphen: it shadows no package
        require_folder(out)
        save(out, lambda folder: paths.extend(into(folder)))
    else:
        paths = [out or first.with_suffix(".png")]
        require_apart({"--out" if out else "the picture": paths[0]}, inputs)
        require_picture(paths[0])
        with themed() if drawings or kind in BY_NAME.values() else nullcontext():
            one = only(drawings, paths[0]) if drawings else picture_of(kind, options.files, text, options.between)
            save(paths[0], lambda to: draw(one, to, DPI.get(kind, 150)))
    return paths
