"""Draws what other commands write: runs, training logs, searches, traces, predictions, overviews, schedules.

meshmark plot runs/NAME.json --out scaling.pdf --metric efficiency --size 3.3x2.6 --font-size 8 --no-title
meshmark show fsdp --json | meshmark plot - --out fsdp.png

In a notebook, `plot.throughput(load("run.json"))` and a function for each other metric draw on axes and return them.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.cli.ending import Refused
from benchmarks.cli.outputs import log, require_apart, require_folder, require_picture, save
from results.figures.axes import efficiency, memory, mfu, speedup, step_time, throughput
from results.figures.frame import PLAIN, Style, caption_of, themed
from results.figures.frame import save as write
from results.kinds import KINDS, OPTIONS, STDIN, FileKind, Inputs, is_file, is_folder
from results.records.reading import RecordError
from results.records.training import SUFFIX
from strategies.files import decode_json, read_json, shown

__all__ = ["efficiency", "main", "memory", "mfu", "speedup", "step_time", "throughput"]
CAPTIONS = "captions.txt"
PRINTED_BY = "print one with `meshmark schedule NAME ... --json` or `meshmark show STRATEGY --json`"
DRAWN = "name a file of `measure --benchmark-json`, `train`, `search --json`, `show --json` or `schedule --json`"
READ = ".jsonl", ".json", ".csv"
"""Suffixes of files that are drawn."""


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


def content_of(path: Path) -> Any:
    """Return the content of a file or of stdin, None if it is not one document."""
    if path == STDIN:
        return decode_json(read_stdin(), "stdin")
    if path.is_dir():
        with suppress(OSError):
            if found := sorted(each for each in path.iterdir() if each.suffix in READ):
                raise Refused(f"{shown(path)} is a folder, and files are drawn; name one, such as {shown(found[0])}")
    if path.suffix in (SUFFIX, ".csv"):
        return None
    return read_json(path, DRAWN)


def kind_of(path: Path, content: Any) -> str:
    """Return the kind of a file."""
    found = next((name for name, kind in KINDS.items() if kind.recognised(path, content)), "")
    if path == STDIN and found not in ("overviews", "schedule"):
        raise RecordError("stdin has neither a schedule nor overviews")
    return found


def require_effect(options: argparse.Namespace, kinds: Sequence[str]) -> None:
    """Check that files can be drawn together, and that all options have an effect."""
    first, kind = options.files[0], KINDS[kinds[0]]
    if len({*kinds}) > 1:
        other = options.files[[each != kinds[0] for each in kinds].index(True)]
        problem = f"{shown(first)} is of the kind {kinds[0]}, and {shown(other)} is not"
        raise Refused(f"{problem}; plot them apart")
    if len(kinds) > 1 and not kind.together:
        raise Refused(f"a picture is of one {kinds[0]}; plot the {len(kinds)} files apart")
    for name, effect in OPTIONS.items():
        if getattr(options, name) and name not in kind.options:
            raise Refused(f"{effect}, and this is of the kind {kinds[0]}; remove it")
    if first == STDIN and not options.out:
        raise Refused("what is on stdin has no name; pass --out, which names the picture")


def main(options: argparse.Namespace) -> None:
    """Draw files of one kind, and print the paths of the pictures."""
    try:
        print(*drawn(options), sep="\n")
    except RecordError as error:
        raise RecordError(f"{error}; {PRINTED_BY}" if options.files[0] == STDIN else str(error)) from error


def drawn(options: argparse.Namespace) -> list[Path]:
    """Draw files of one kind, and return the paths written. Errors are those of `main`."""
    first, inputs = options.files[0], [path for path in options.files if path != STDIN]
    contents = [content_of(path) for path in options.files]
    kinds = [kind_of(path, content) for path, content in zip(options.files, contents, strict=True)]
    require_effect(options, kinds)
    kind, out = KINDS[kinds[0]], options.out
    style = Style(options.size, options.font_size or PLAIN.font_size, not options.no_title)
    source = Inputs(options.files, contents, options, style)
    folder = kind.folder if out is None else not is_file(out) and (kind.folder or is_folder(out))
    if not folder:
        return [draw_one(kind, source, out or first.with_suffix(".png"), inputs)]
    out = out or first.with_name(f"{first.stem}-figures")  # the hyphen: it shadows no package
    require_folder(out)
    paths = list[Path]()
    save(out, lambda folder: paths.extend(draw_all(kind, source, folder)))
    return paths


def draw_one(kind: FileKind, source: Inputs, out: Path, inputs: Sequence[Path]) -> Path:
    """Draw the one picture of a file, and return its path; without a title its caption is printed on stderr."""
    require_apart({"--out" if source.options.out else "the picture": out}, inputs)
    require_picture(out)
    found = kind.drawings(source)
    if len(found) != 1:
        names = ", ".join(drawing.name for drawing in found)
        problem = f"{shown(out)} is one picture, and there are {len(found)} of {source.where} ({names})"
        raise Refused(f"{problem}; name a folder as --out, and take one of them from there")
    with themed(source.style):
        figure = found[0].figure()
        save(out, lambda to: write(figure, to))
    if not source.style.title and (caption := caption_of(figure)):
        log(caption)
    return out


def draw_all(kind: FileKind, source: Inputs, folder: Path) -> list[Path]:
    """Write pictures as PNG and SVG into a folder, and their captions as text; return the paths written."""
    paths, captions = list[Path](), list[str]()
    with themed(source.style):
        for drawing in kind.drawings(source):
            figure, path = drawing.figure(), folder / drawing.name
            path.parent.mkdir(parents=True, exist_ok=True)
            for suffix in ("png", "svg"):
                paths.append(path.parent / f"{path.name}.{suffix}")
                write(figure, paths[-1])
            captions.append(f"{drawing.name}\n{caption_of(figure)}\n")
    paths.append(folder / CAPTIONS)
    paths[-1].write_text("\n".join(captions), encoding="utf-8")
    return paths
