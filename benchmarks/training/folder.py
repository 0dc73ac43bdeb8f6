"""The folder of a training run: one run at a time writes into it, and it is tried before the first step."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cli.outputs import Unwritable, cause, require_folder
from strategies.checkpoints import require_writable


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Create the folder of a run, and keep other runs out of it while the body runs.

    The lock ends with the process, however that ends. A file system without locks, as NFS may be, keeps nobody out.

    Raises:
        Unwritable: the folder cannot be written, or another run is writing into it.
    """
    require_folder(folder)
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise Unwritable(f"{folder} cannot be read: {cause(error)}; name another folder") from error
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(number)
        raise Unwritable(f"another run is writing into {folder}; wait for it, or name another --out") from error
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(number)


def require_saves(folder: Path) -> None:
    """Check that a folder takes checkpoints, by an array that is written as a save does. Nothing of it is left.

    Raises:
        Unwritable: it does not.
    """
    try:
        require_writable(folder.resolve())
    except (OSError, ValueError) as error:
        reason = cause(error) if isinstance(error, OSError) else str(error)
        raise Unwritable(f"checkpoints cannot be written to {folder}: {reason}; name another --out") from error
