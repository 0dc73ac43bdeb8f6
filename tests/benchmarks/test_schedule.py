"""`meshmark schedule` prints pipeline schedules."""

import json
import subprocess
import sys

import pytest

from tests.commands import command
from tests.processes import ROOT

main = command("schedule")


def test_a_schedule_is_printed_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule is printed as text with its bubbles, or as JSON; an impossible one is refused with the numbers."""
    main(["zb-h1", "--stages", "2", "--microbatches", "2"])
    assert capsys.readouterr().out == (
        "F0 F1 .. B0 W0 B1 W1\n.. F0 B0 F1 B1 W0 W1\n"
        "bubble: 14.3% of the time, if a backward pass takes twice as long as a forward pass\n"
        "lockstep bubble: 0.0% of the time on top, if stages start each tick together\n"
        "microbatches in flight, by stage: 2, 2\n"
    )
    main(["interleaved", "--stages", "1", "--microbatches", "1", "--json"])
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["stages"] == [
        [[{"kind": kind, "microbatch": 0, "chunk": chunk}] for kind, chunk in (("F", 0), ("F", 1), ("B", 1), ("B", 0))]
    ]
    with pytest.raises(SystemExit):
        main(["interleaved", "--stages", "2", "--microbatches", "3"])
    assert "pipeline=2 does not divide microbatches=3" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["gpipe", "--stages", "0", "--microbatches", "3"])
    assert "use a whole number of at least 1" in capsys.readouterr().err


def test_a_schedule_needs_no_jax() -> None:
    """Loading JAX takes most of a second, and tables of numbers have no use for it."""
    code = "import sys; from benchmarks.cli.main import prepared; prepared('schedule', sys.argv[1:])(); "
    code += "sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, *["gpipe", "--stages=2", "--microbatches=2"]], check=True, cwd=ROOT)
