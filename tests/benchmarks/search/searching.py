"""A search by the command, and what it writes; a tiny model whose steps are compiled."""

import json

from tests.commands import command

SPACE = "--batch-size=64", "--remat=dots", "--strategy=fsdp,tensor,pipeline"
ARGUMENTS = "--preset=gpt2", "--topology=h100:1x8", *SPACE


def found(tmp_path, *more):
    """The document that the command writes."""
    path = tmp_path / "found.json"
    assert command("search")([*ARGUMENTS, f"--json={path}", *more]) == 0
    return json.loads(path.read_text())


def fitting(document):
    """The rows of the candidates that fit."""
    return [row for row in document["candidates"] if row["status"] == "fits"]


TINY = ["--model=layers=2,embed=16,heads=2,vocab=256,sequence=8", "--batch-size=4", "--mesh=fsdp=4"]
