"""The two checkouts of a paired comparison: directories as they stand, or git refs in worktrees made for it."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from results.gates.verdict import NotComparable

WORKER = "benchmarks/worker.py"


class CheckoutError(ValueError):
    """What was named cannot be checked out; the message says why, in git's words where they are its own."""


@dataclass(frozen=True)
class Checkout:
    """A copy of the code to run.

    Attributes:
        name: as it was asked for, with its commit where it has one.
        root: its folder.
        python: the interpreter of its environment.
    """

    name: str
    root: Path
    python: str


@contextlib.contextmanager
def checked_out(name: str, python: str) -> Iterator[Checkout]:
    """A directory that is a checkout, uncommitted changes included; or else a git ref.

    A ref gets a worktree, which goes away with the context, whatever ends it.

    Raises:
        CheckoutError: it is neither.
        NotComparable: it is from before checkouts could be timed.
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
            git("worktree", "prune")  # the folder is gone, and git is told


def git(*arguments: str) -> str:
    """What git prints.

    Raises:
        CheckoutError: git's last words.
    """
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
    with contextlib.suppress(CheckoutError):  # a directory that git knows nothing of has no commit
        name = f"{name} ({git('-C', str(root), 'describe', '--always', '--dirty')})"
    return Checkout(name, root, python)
