"""Writes the weights of a checkpoint as a Hugging Face folder.

meshmark export runs/fsdp/checkpoints --to-huggingface exported
"""

import argparse

from benchmarks.cli.ending import Refused, refusing
from benchmarks.cli.outputs import Unwritable, cause, short
from strategies import CheckpointError
from strategies.huggingface import write


def main(option: argparse.Namespace) -> None:
    """Write the folder."""
    folder = option.to_huggingface
    if given := [name for name in ("format", "columns", "out") if getattr(option, name)]:
        raise Refused(f"--{given[0]} is of a run, and --to-huggingface of checkpoints; remove one of them")
    try:
        with refusing():
            write(folder, option.run, at=option.at, dtype=option.dtype)
    except CheckpointError as error:
        raise Unwritable(str(error)) from error
    except OSError as error:
        raise Unwritable(f"{short(folder)} cannot be written: {cause(error)}; name another folder") from error
    print(f"the weights are in {short(folder)}, in {option.dtype}")
