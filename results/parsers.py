"""The parsers of the commands that draw: without pandas and matplotlib, for a help is printed at once."""

import argparse
from pathlib import Path

from benchmarks.commandline.main import program
from results.arguments import count


def plot() -> argparse.ArgumentParser:
    """Of `meshmark plot`."""
    about = "Draw the curves of benchmark runs."
    parser = argparse.ArgumentParser(program("python -m results.plot"), description=about)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="written by pytest benchmarks --benchmark-json")
    add("--out", type=Path, metavar="DIR", help="default: NAME-figures, beside the first FILE")
    add("--batch-size", type=count, metavar="N", help="global batch of the curves against devices and memory")
    return parser


def frontier() -> argparse.ArgumentParser:
    """Of `meshmark frontier`."""
    about = "Draws what `python -m benchmarks.feasibility --json FILE` found: memory against the bound on throughput."
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
