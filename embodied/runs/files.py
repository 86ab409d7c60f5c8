"""Files that survive a crash of the machine, folders that can be written to, names that are free."""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from embodied.errors import RefusedInput

OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
"""Numbers of the errors that a disk is the cause of."""


def flush_to_disk(path: Path) -> None:
    """Return when the file's contents, or the folder's entries, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, text: str) -> None:
    """Give the file this text in one step: whoever reads it, or kills us, finds the old text or the new.

    Raises OSError."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def anchored(
    values: dict[str, Any], keys: Sequence[str], names: frozenset[str] = frozenset(), written: Sequence[str] = ()
) -> dict[str, Any]:
    """`values` with the paths of what is there made absolute, so that they mean the same wherever a run is resumed.

    keys: dotted, of a path or of a sequence of them; what is none of this machine's (a hub id, None) stays.
    names: that are never paths. written: keys of paths that need not be there yet.
    """

    def one(value: Any, key: str) -> Any:
        if isinstance(value, list | tuple):
            return [one(each, key) for each in value]
        if not isinstance(value, str) or not value or value in names:
            return value
        path = Path(value).expanduser()
        return str(path.absolute()) if key in written or path.exists() else value

    values = copy.deepcopy(values)
    for key in (*keys, *written):
        *parents, last = key.split(".")
        section: Any = values
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict) and last in section:
            section[last] = one(section[last], key)
    return values


def require_writable(folder: Path, option: str) -> None:
    """Make the folder where there is none, and see that files can be written there.

    option: that names another one. Raises RefusedInput, and leaves nothing behind then.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable_{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise RefusedInput(
            f"the folder {folder} cannot be written: {error.strerror or error}; choose another with {option}"
        ) from None


@contextlib.contextmanager
def reserved(path: Path) -> Iterator[Path]:
    """A file at `path`, or at the first of `name-2`, `name-3`, ... that is not there, so that nothing is written over.

    Others cannot take it meanwhile: it is there, empty, from now on. What is still empty at the end of the block is
    removed. Raises RefusedInput where no file can be made.
    """
    chosen = _first_made(path, lambda one: one.open("x").close())
    try:
        yield chosen
    finally:
        if chosen.is_file() and not chosen.stat().st_size:
            chosen.unlink()


@contextlib.contextmanager
def reserved_folder(path: Path) -> Iterator[Path]:
    """As `reserved`, for a folder."""
    chosen = _first_made(path, Path.mkdir)
    try:
        yield chosen
    finally:
        if chosen.is_dir() and not any(chosen.iterdir()):
            chosen.rmdir()


def _first_made(path: Path, make: Callable[[Path], None]) -> Path:
    """make: raises FileExistsError for what is there already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return next(one for one in _numbered(path) if made(one, make))
    except OSError as error:
        raise RefusedInput(f"{path} cannot be written: {error.strerror or error}; choose another with --out") from None


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))


def made(path: Path, make: Callable[[Path], None]) -> bool:
    """Whether `make` made it. Where it raises FileExistsError, somebody else did."""
    try:
        make(path)
    except FileExistsError:
        return False
    return True
