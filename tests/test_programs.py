"""What `python -m` does with the modules of the three rooms."""

import json
import subprocess
import sys

from tests.processes import ROOT, environment

PROGRAMS = {
    "benchmarks.__main__",
    "benchmarks.run.__main__",
    "benchmarks.run.server",
    "benchmarks.cases.columns",
    "benchmarks.cli.reference",
}
"""The modules that are programs, each described where it begins. Their own tests run them."""

RUN_EACH = """
import json, os, runpy, sys, tempfile
import argparse, dataclasses, typing, msgspec  # what many import, once
ended = {}
for module in sys.argv[1:]:
    with tempfile.TemporaryFile() as said:
        if not (child := os.fork()):
            os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
            sys.argv[:], sys.orig_argv[:] = ["-m", "FILE"], [sys.executable, "-m", module, "FILE"]
            status = 0
            try:
                runpy._run_module_as_main(module)
            except SystemExit as end:
                status = end.code
            except BaseException as error:
                status = repr(error)
            sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        ended[module] = status, said.read().decode()
print(json.dumps(ended))
"""
"""Runs each module as `python -m MODULE FILE`, in a fork of a process that has imported none of them."""


def modules() -> set[str]:
    """Names of all modules of the three rooms, without those of packages themselves."""
    files = (path for room in ("strategies", "benchmarks", "results") for path in (ROOT / room).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if path.name != "__init__.py"}


def test_a_module_that_is_not_a_program_says_so() -> None:
    """`python -m` of a module without a program ends with 2 and one line that names `meshmark`; it is never silent."""
    command = [sys.executable, "-c", RUN_EACH, *sorted(modules() - PROGRAMS)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    ended = json.loads(done.stdout)
    unclear = {
        module: (status, said)
        for module, (status, said) in ended.items()
        if status != 2 or not said.startswith(f"python -m {module} is not a command; ") or said.count("\n") != 1
    }
    assert not unclear
    assert ended["results.plot"][1].endswith("use `meshmark plot`\n")
    assert ended["results.regress"][1].endswith("use `meshmark regress exact` or `meshmark regress paired`\n")
    assert all("`meshmark" in said for _, said in ended.values())


def test_the_programs_are_modules() -> None:
    """Each program that is excepted exists."""
    assert modules() >= PROGRAMS
