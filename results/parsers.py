"""Command-line parsers of the commands that draw. They load neither pandas nor matplotlib: help is printed at once."""

import argparse
from pathlib import Path

from benchmarks.commandline.main import program
from results.arguments import count


def plot() -> argparse.ArgumentParser:
    """Of `meshmark plot`."""
    about = "Draw the figures of benchmark runs."
    parser = argparse.ArgumentParser(program("python -m results.plot"), description=about)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="written by pytest benchmarks --benchmark-json")
    add("--out", type=Path, metavar="DIR", help="default: NAME-figures, beside the first FILE")
    add("--batch-size", type=count, metavar="N", help="global batch, in sequences, of the figures that show one batch")
    return parser


def page() -> argparse.ArgumentParser:
    """Of `meshmark page`."""
    about = "Write one page of HTML about runs and searches."
    parser = argparse.ArgumentParser(program("python -m results.page"), description=about)
    written = "written by pytest benchmarks --benchmark-json, or by python -m benchmarks.feasibility --json"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=written)
    parser.add_argument("--out", type=Path, metavar="PAGE", help="default: NAME.html, beside the first FILE")
    return parser


def frontier() -> argparse.ArgumentParser:
    """Of `meshmark frontier`."""
    about = "Draw what `python -m benchmarks.feasibility --json FILE` found: memory against the bound on throughput."
    parser = argparse.ArgumentParser(program("python -m results.frontier"), description=about)
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="written by python -m benchmarks.feasibility --json")
    add("--out", type=Path, metavar="PICTURE", help="default: FILE's name, in PNG; its ending says which")
    return parser


def timeline() -> argparse.ArgumentParser:
    """Of `meshmark timeline`."""
    parser = argparse.ArgumentParser(program("python -m results.timeline"), description="Draw a pipeline schedule.")
    parser.add_argument("out", type=Path, metavar="FILE", help="the picture; its ending says which kind")
    return parser
