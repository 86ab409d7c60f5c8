"""Files that survive a crash of the machine, and folders that can be written to."""

from __future__ import annotations

import os
from pathlib import Path

from embodied.errors import RefusedInput


def flush_to_disk(path: Path) -> None:
    """Return when the file's contents, or the folder's entries, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
