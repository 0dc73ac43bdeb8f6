"""Output files of commands: checked before the work begins, and saved elsewhere if writing them fails afterwards."""

import argparse
import fcntl
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

STDOUT = Path("-")
PICTURES = ("eps", "jpeg", "jpg", "pdf", "png", "ps", "svg", "svgz", "tif", "tiff", "webp")
"""Formats of pictures: suffixes without the dot."""
FILES = frozenset({*PICTURES, "csv", "gz", "html", "json", "jsonl", "log", "md", "txt", "xml", "zip"})
"""Suffixes that a folder's name does not have."""
FORMATS = frozenset({"csv", "html", "json", "jsonl", "md", "xml"})
"""Suffixes of text formats that a command may write."""
NO_PICTURE = f"has no suffix of a picture; it can be {', '.join(f'.{name}' for name in PICTURES)}"


class Unwritable(ValueError):
    """A result cannot be written to its path; the message says why, and where it was saved instead, if anywhere."""


def require_file(path: Path, kind: str = "", *, picture: bool = False) -> None:
    """Check that a file can be written, and create its folder. An existing file keeps its content.

    Args:
        path: of the file.
        kind: the suffix of files of its format, such as "json"; suffixes of other formats are refused.
        picture: whether its format is that of a picture.
    """
    if path == STDOUT:
        raise Unwritable("- is not the name of a file; name another file, or /dev/stdout to print it")
    if special(path):
        return  # opening it may disturb it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.open("ab").close()
        with suppress(FileNotFoundError):  # other errors mean that the file system refuses the name
            path.lstat()
        tempfile.TemporaryFile(dir=path.parent).close()  # another program may be writing the file itself
    except OSError as error:
        raise Unwritable(f"{short(path)} cannot be written: {cause(error)}; name another file") from error
    if is_picture(path) and not picture:
        raise Unwritable(f"{short(path)} has the suffix of a picture, and this file is not one; name another file")
    if kind and path.suffix[1:].lower() in FORMATS - {kind}:
        raise Unwritable(f"{short(path)} has the suffix of another format, and this file is {kind}; use .{kind}")


def require_folder(path: Path) -> None:
    """Check that files can be written into a folder, and create it."""
    if path.suffix[1:].lower() in FILES and not path.is_dir():
        raise Unwritable(f"{short(path)} is named like a file, and would be a folder; remove {path.suffix}")
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise Unwritable(f"{short(path)} cannot be written to: {cause(error)}; name another folder") from error


def require_picture(path: Path) -> None:
    """Check that a picture can be written, and that its suffix is the format of one."""
    if not is_picture(path):
        raise Unwritable(f"{short(path)} {NO_PICTURE}")
    require_file(path, picture=True)


def is_picture(path: Path) -> bool:
    """Whether the suffix of a path is the format of a picture."""
    return path.suffix[1:].lower() in PICTURES


def require_apart(outputs: Mapping[str, Path], inputs: Iterable[Path] = ()) -> None:
    """Check that no output is also an input or another output; devices and pipes may be shared.

    Outputs are paths by the option that names them, inputs the files that the command reads.
    """
    taken = [(f"the input {short(path)}", path) for path in inputs]
    for name, path in outputs.items():
        for what, other in taken:
            if same(path, other):
                raise Unwritable(f"{name} {short(path)} would overwrite {what}; name another file")
        taken.append((f"the output of {name}", path))


def special(path: Path) -> bool:
    """Return whether a path is a device or a pipe."""
    return os.path.exists(path) and not (path.is_file() or path.is_dir())  # noqa: PTH110 (a long name has no Path.exists)


def same(path: Path, other: Path) -> bool:
    """Return whether two paths are, or would become, the same regular file."""
    try:
        if path.exists() and other.exists():
            return path.is_file() and path.samefile(other)
    except OSError:  # the name is too long; writing it raises a clear error later
        return False
    return path.absolute() == other.absolute()


def locked(file: int | IO[Any], path: Path) -> bool:
    """Lock a file or a folder for as long as it is open; return False if another process has locked it.

    A file system without locks, as Lustre and NFS may be, keeps nobody out: a line on stderr says so.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        warn_once(f"{short(path)} cannot be locked: {cause(error)}; let no other run write there at the same time")
    return True


def log(text: str) -> None:
    """Print a line on stderr, apart from the results of a command."""
    print(text, file=sys.stderr, flush=True)


@cache
def warn_once(text: str) -> None:
    """Print a line on stderr, unless this process has printed it."""
    log(text)


def save(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` to write a file, or the files of a folder; if it fails, call it again with a temporary path.

    A file is replaced atomically: it is either complete or unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or in_place(path):
            write(path)
        else:
            replace(path.resolve(), write)
        return
    except OSError as error:
        problem = f"{short(path)} cannot be written: {cause(error)}"
    try:
        elsewhere = Path(tempfile.mkdtemp(prefix="meshmark-"), path.name[-100:])
        write(elsewhere)
    except OSError as error:
        raise Unwritable(f"{problem}; nor can a temporary file: {cause(error)}") from error
    raise Unwritable(f"{problem}; the result is in {elsewhere}")


def in_place(path: Path) -> bool:
    """Return whether to write directly to a path, as to all of /dev: a shell may redirect such a path to a file."""
    return special(path) or Path("/dev") in path.absolute().parents


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a path in the same folder, and rename the file to `path` when it is complete."""
    with tempfile.TemporaryDirectory(prefix=".meshmark-", dir=path.parent) as beside:
        part = Path(beside, path.name)  # same suffix, which selects the file format
        write(part)
        part.replace(path)


def save_text(path: Path, text: str) -> None:
    """Write a text file, or a temporary file if it cannot be written there."""
    save(path, lambda to: to.write_text(text, encoding="utf-8"))


def write_then_print(files: Mapping[Path, str], text: str, *, named: bool = False) -> None:
    """Write text files, and print a report after them: stdout may be on a full disk, or a pipe that `head` has closed.

    If a file cannot be written, the others are, and the report is printed. `files` are contents by path. With `named`,
    also print which files were written.
    """
    problems, lines = [], [text]
    for path, content in files.items():
        try:
            save_text(path, content)
            lines += [f"wrote {short(path)}"] if named else []
        except Unwritable as error:
            problems.append(str(error))
    try:
        print("\n".join(lines), flush=True)
    finally:
        if problems:
            raise Unwritable("; ".join(problems))


def present(option: argparse.Namespace, document: str, text: str) -> None:
    """Print a report, or its JSON document with `--json`; draw the document with `--png`. Files come first."""
    paths = {"--json": option.json, "--png": option.png}
    require_apart({name: path for name, path in paths.items() if path not in (None, STDOUT)})
    files = {option.json: document} if option.json not in (None, STDOUT) else {}
    for path in files:
        require_file(path, "json")
    lines, status = [document if option.json == STDOUT else text], 0
    if option.png:  # by another process: the package that draws needs no JAX, and this one no matplotlib
        command = [sys.executable, "-m", "benchmarks", "plot", "-", "--out", os.fspath(option.png)]
        drawn = subprocess.run(command, input=document, stdout=subprocess.PIPE, text=True, check=False)
        lines, status = [*lines, *drawn.stdout.splitlines()], drawn.returncode
    write_then_print(files, "\n".join(lines))
    if status:
        sys.exit(status)


def safe_name(text: str) -> str:
    """Convert a string to a valid name of a file or folder that cannot leave its parent folder.

    >>> safe_name("gpt2-124439808-1024-float32-dots"), safe_name("../../evil"), safe_name("..")
    ('gpt2-124439808-1024-float32-dots', '_.._evil', '_')
    """
    kept = "".join(letter if letter.isalnum() or letter in "-_.=,+ " else "_" for letter in text)
    encoded = kept.lstrip(".").encode("utf-8", "replace")[:200]
    return encoded.decode("utf-8", "ignore") or "_"


def deduplicated(names: Iterable[str]) -> list[str]:
    """Make names unique by appending a number to repeated ones.

    >>> deduplicated(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    found: list[str] = []
    for name in names:
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        found.append(next(free for free in itertools.chain([name], numbered) if free not in found))
    return found


def cause(error: OSError) -> str:
    """Return the system's message; replace "File exists", which does not say that a folder's path is a file."""
    if isinstance(error, FileExistsError):
        return f"{error.filename} is not a folder"
    return error.strerror or str(error)


def short(path: Path) -> str:
    """Return a path as text that can be printed, without its middle if it is longer than 300 characters."""
    text = os.fspath(path).encode(errors="backslashreplace").decode()
    return text if len(text) <= 300 else f"{text[:100]}...{text[-100:]}"
