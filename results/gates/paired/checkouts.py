"""The two checkouts of a paired comparison: existing directories, or temporary worktrees of git refs."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from results.records.reading import NotComparable

WORKER = "benchmarks/run/server.py"


class CheckoutError(ValueError):
    """A checkout cannot be made or run. The message gives the reason, with git's own message if git failed."""


@dataclass(frozen=True)
class Checkout:
    """A copy of the code to run.

    Attributes:
        name: the requested directory or git ref, followed by the commit if there is one.
        root: the folder of the checkout.
        python: path of the interpreter that runs it.
    """

    name: str
    root: Path
    python: str


@contextlib.contextmanager
def checked_out(name: str, python: str) -> Iterator[Checkout]:
    """Yield the checkout of a directory or of a git ref.

    A directory is used in place, with its uncommitted changes. A git ref is checked out into a temporary worktree,
    which is removed when the context exits, also after an error.

    Args:
        name: the directory or git ref. A directory must contain `benchmarks/`.
        python: path of the interpreter that runs the checkout.
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
