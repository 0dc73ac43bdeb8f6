"""Command-line parsers of the commands that draw. They load neither pandas nor matplotlib, so that `--help` is fast."""

from pathlib import Path

from benchmarks.commandline.parser import Parser
from benchmarks.commandline.values import count
from results.cli.arguments import interval

PICTURE = "picture to write; its suffix selects the format"
FILES = "written by pytest benchmarks --benchmark-json; or log.jsonl, written by meshmark train"


def plot() -> Parser:
    """Return the parser of `meshmark plot`."""
    about = "Draw the figures of benchmark runs, or the loss curves of training runs over one another."
    parser = Parser("meshmark plot", description=about)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help=FILES)
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to write to; default: NAME-figures, in the folder of the first FILE",
    )
    batch = "global batch, in sequences, of figures that show one batch; default: the batch that most cases have"
    add("--batch-size", type=count, metavar="N", help=batch)
    return parser


def page() -> Parser:
    """Return the parser of `meshmark page`."""
    about = "Write an HTML page about runs and searches."
    parser = Parser("meshmark page", description=about)
    written = "written by pytest benchmarks --benchmark-json, or by meshmark search --json"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=written)
    parser.add_argument("--out", type=Path, metavar="PAGE", help="default: NAME.html, in the folder of the first FILE")
    return parser


def frontier() -> Parser:
    """Return the parser of `meshmark frontier`."""
    about = "Draw the best candidates of a search: their times and memory."
    parser = Parser("meshmark frontier", description=about)
    _declare_file_and_picture(parser, "meshmark search --json")
    return parser


def predictions() -> Parser:
    """Return the parser of `meshmark predictions`."""
    about = "Write a page that compares predicted with published seconds: errors, two pictures, and every row as CSV."
    parser = Parser("meshmark predictions", description=about)
    add = parser.add_argument
    add("file", type=Path, metavar="PREDICTED.csv", help="written by meshmark predict --out")
    folder = "folder of published.md, published.csv and two pictures; of a page that is there, the tables are replaced"
    add("--out", type=Path, metavar="FOLDER", required=True, help=folder)
    return parser


def scaling() -> Parser:
    """Return the parser of `meshmark scaling`."""
    about = "Draw predicted time of a step and utilization against devices, for strong and weak scaling."
    parser = Parser("meshmark scaling", description=about)
    _declare_file_and_picture(parser, "meshmark search --scaling N..N --json")
    return parser


def timeline() -> Parser:
    """Return the parser of `meshmark timeline`."""
    about = "Draw a pipeline schedule, which `meshmark schedule NAME --json` writes to stdin."
    parser = Parser("meshmark timeline", description=about)
    parser.add_argument("out", type=Path, metavar="FILE", help=PICTURE)
    return parser


def lanes() -> Parser:
    """Return the parser of `meshmark lanes`."""
    about = "Draw a replayed step as lanes: compute, memory traffic and waits of a device, and what its links send."
    parser = Parser("meshmark lanes", description=about)
    _declare_file_and_picture(parser, "meshmark compile --trace")
    part = "draw this part of the step; default: all of it"
    parser.add_argument("--between", type=interval, metavar="MS,MS", help=part)
    return parser


def shards() -> Parser:
    """Return the parser of `meshmark shards`."""
    about = "Draw which device holds which part of each array, which `meshmark show STRATEGY --json` lists."
    parser = Parser("meshmark shards", description=about)
    parser.add_argument("out", type=Path, metavar="FILE", help=PICTURE)
    return parser


def _declare_file_and_picture(parser: Parser, written_by: str) -> None:
    """Declare the arguments of a command that draws one file (`figures.pictures.draw_file`)."""
    parser.add_argument("file", type=Path, metavar="FILE", help=f"written by {written_by}")
    picture = f"{PICTURE}; default: FILE with the suffix .png"
    parser.add_argument("--out", type=Path, metavar="PICTURE", help=picture)
