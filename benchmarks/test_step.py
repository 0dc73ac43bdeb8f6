"""Benchmark of training steps: `pytest benchmarks --benchmark-json=results/runs/NAME.json`."""

import pytest

from benchmarks.run.supervise import Ended, Supervisor


def test_step(case: str, run: Supervisor) -> None:
    """The step compiles, computes what one device computes, and is timed, interleaved with all comparable ones.

    The case leaves a row, however it ends. An infeasible one is skipped.
    """
    try:
        info = run.row(case).extra_info
    except Ended as end:
        pytest.exit(end.reason, returncode=end.status)
    if info.get("chip.fits") is False:
        return  # does not fit: a valid result of --topology
    if info["status"] == "infeasible":
        pytest.skip(f"infeasible: {info['reason']}")
    if info["status"] != "ok":
        # pytest's summary begins with the name of the class, and shows the first line.
        failure = type(str(info["status"]), (pytest.fail.Exception,), {"__module__": "builtins"})
        raise failure(f"{info['reason']}\n\n{run.tracebacks.get(case, '')}".rstrip(), pytrace=False)
