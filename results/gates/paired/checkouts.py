"""The two checkouts of a paired comparison, directories or worktrees of git refs, and their timing servers."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cli.child import PROTOCOL, Server
from results.records.reading import Case, NotComparable
from strategies.schema import checked

WORKER = "benchmarks/run/server.py"


class CheckoutError(ValueError):
    """A checkout cannot be made or run. The message gives the reason, with git's own message if git failed."""


@dataclass(frozen=True)
class Checkout:
    """A copy of the code to run, and its interpreter; `name` is the directory or git ref, then the commit, if known."""

    name: str
    root: Path
    python: str


@contextlib.contextmanager
def checked_out(name: str, python: str) -> Iterator[Checkout]:
    """Yield the checkout of a directory or of a git ref.

    A directory with `benchmarks/` in it is used in place, with its uncommitted changes. A git ref is checked out into a
    temporary worktree, which is removed when the context exits, also after an error.
    """
    if Path(name, "benchmarks").is_dir():
        yield _checkout(name, Path(name).resolve(), python)
        return
    try:
        commit = git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except CheckoutError as error:
        raise CheckoutError(
            f"{name!r} is neither a directory with a benchmarks/ in it nor a commit that is here ({error}); "
            "name one, or `git fetch` it first"
        ) from error
    try:
        with tempfile.TemporaryDirectory(prefix="meshmark-") as folder:
            root = Path(folder).resolve() / "checkout"
            git("worktree", "add", "--detach", str(root), commit)
            yield _checkout(name, root, python)
    finally:
        with contextlib.suppress(CheckoutError):
            git("worktree", "prune")  # the folder was deleted, so git removes its record of it


def git(*arguments: str) -> str:
    """Run git and return its standard output, stripped."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise CheckoutError("git is not installed") from error
    if done.returncode:
        raise CheckoutError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def _checkout(name: str, root: Path, python: str) -> Checkout:
    if not (root / WORKER).is_file():
        raise NotComparable(f"{name} has no {WORKER}: it is too old to be timed; compare with a later commit")
    with contextlib.suppress(CheckoutError):  # a directory outside of git has no commit
        name = f"{name} ({git('-C', str(root), 'describe', '--always', '--dirty')})"
    return Checkout(name, root, python)


def worker(checkout: Checkout, selection: Sequence[str], patience_seconds: float) -> Server:
    """The timing server of a checkout, which its first request starts; command line options select its cases."""
    return Server(
        selection,
        python=checkout.python,
        folder=checkout.root,
        environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # three processes share a GPU's memory
        patience_seconds=patience_seconds,
        quiet=True,
    )


@dataclass(frozen=True)
class Introduction:
    """A checkout's description of itself: ids of its cases by their names in reports, versions, and devices."""

    cases: dict[str, str]
    environment: dict[str, str]
    devices: str


def introduce(checkout: Checkout, selection: Sequence[str], patience_seconds: float) -> Introduction:
    """Ask a checkout for its cases, versions and devices."""
    with worker(checkout, selection, patience_seconds) as server:
        answer = checked(server.ask("hello"), dict[str, Any], "the answer of a timing server")
    if answer["protocol"] != PROTOCOL:
        raise NotComparable(
            f"the timing server of {checkout.name} speaks protocol {answer['protocol']}, and this is {PROTOCOL}; "
            "compare from a checkout as new as the newer of the two"
        )
    if answer["root"] != str(checkout.root):
        raise CheckoutError(f"{checkout.name} would run the code in {answer['root']}; unset PYTHONSAFEPATH")
    cases = {str(Case.of(facts, f"a case of {checkout.name}")): facts["id"] for facts in answer["cases"]}
    return Introduction(cases, answer["environment"], answer["devices"])
