"""Output files of commands: checked before the work begins, and saved elsewhere if they cannot be written after it."""

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path


class Unwritable(ValueError):
    """A result that cannot be written where it was asked for; the message says why, and where it is if it was saved."""


def require_file(path: Path) -> None:
    """See that a file can be written, and make its folder. What it holds stays as it is.

    Raises:
        Unwritable: it cannot.
    """
    if special(path):
        return  # opening it may disturb it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.open("ab").close()
        with suppress(FileNotFoundError):  # other errors say that there can be no such name
            path.lstat()
        tempfile.TemporaryFile(dir=path.parent).close()  # another program may be writing the file itself
    except OSError as error:
        raise Unwritable(f"{short(path)} cannot be written: {cause(error)}; name another file") from error


def require_folder(path: Path) -> None:
    """See that files can be written into a folder, and make it.

    Raises:
        Unwritable: they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise Unwritable(f"{short(path)} cannot be written to: {cause(error)}; name another folder") from error


def require_picture(path: Path, formats: Collection[str]) -> None:
    """See that a picture can be written, and that its name ends in a format.

    Raises:
        Unwritable: it cannot, or there is no such format.
    """
    if path.suffix.removeprefix(".").lower() not in formats:
        known = ", ".join(sorted(f".{name}" for name in formats))
        raise Unwritable(f"{short(path)} names no picture format; its ending can be {known}")
    require_file(path)


def require_apart(outputs: Mapping[str, Path], inputs: Iterable[Path] = ()) -> None:
    """See that no output is an input, or another output. Devices and pipes can be shared.

    Raises:
        Unwritable: one is; the message names both.
    """
    taken = [(f"the input {short(path)}", path) for path in inputs]
    for name, path in outputs.items():
        for what, other in taken:
            if same(path, other):
                raise Unwritable(f"{name} {short(path)} would overwrite {what}; name another file")
        taken.append((f"what {name} writes", path))


def special(path: Path) -> bool:
    """Whether a path is a device or a pipe."""
    return os.path.exists(path) and not (path.is_file() or path.is_dir())  # noqa: PTH110 (a long name has no Path.exists)


def same(path: Path, other: Path) -> bool:
    """Whether two paths are one regular file, or would be."""
    try:
        if path.exists() and other.exists():
            return path.is_file() and path.samefile(other)
    except OSError:  # a name that is too long, which is refused when it is written
        return False
    return path.absolute() == other.absolute()


def save(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` write a file, or the files of a folder; if it fails, have it write the same elsewhere.

    A file is whole, or as it was before.

    Raises:
        Unwritable: it failed; the message says where the result is, if anywhere.
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
    """Whether a path is written as it stands: what is in /dev is a file, too, where a shell redirects it to one."""
    return special(path) or Path("/dev") in path.absolute().parents


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` write a file beside a path, and put it there when it is whole.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix=".meshmark-", dir=path.parent) as beside:
        part = Path(beside, path.name)  # the ending of its name says what it holds
        write(part)
        part.replace(path)


def save_text(path: Path, text: str) -> None:
    """Write a text file; if that fails, write it elsewhere; if that fails too, print it.

    Raises:
        Unwritable: the file was not written; the message says where the text is.
    """
    written: list[Path] = []

    def write(to: Path) -> None:
        written.clear()
        to.write_text(text, encoding="utf-8")
        written.append(to)

    try:
        save(path, write)
    except Unwritable as error:
        if written:
            raise
        sys.stdout.write(text)
        raise Unwritable(f"{error}; it is printed instead") from error


def safe_name(text: str) -> str:
    """A text as the name of a file or folder: it leads nowhere else, and file systems take it.

    >>> safe_name("gpt2-124439808-1024-float32-dots"), safe_name("../../evil"), safe_name("..")
    ('gpt2-124439808-1024-float32-dots', '_.._evil', '_')
    """
    kept = "".join(letter if letter.isalnum() or letter in "-_.=,+ " else "_" for letter in text)
    encoded = kept.lstrip(".").encode("utf-8", "replace")[:200]
    return encoded.decode("utf-8", "ignore") or "_"


def apart(names: Iterable[str]) -> list[str]:
    """The same names, with a number behind one that an earlier name already is.

    >>> apart(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    found: list[str] = []
    for name in names:
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        found.append(next(each for each in itertools.chain([name], numbered) if each not in found))
    return found


def cause(error: OSError) -> str:
    """Why, in the system's words; "File exists" of a folder that is a file says too little."""
    if isinstance(error, FileExistsError):
        return f"{error.filename} is no folder"
    return error.strerror or str(error)


def short(path: Path) -> str:
    """A path to show, its middle left out if it is very long."""
    text = os.fspath(path)
    return text if len(text) <= 300 else f"{text[:100]}...{text[-100:]}"
