"""Files that survive a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path


def flush_to_disk(path: Path) -> None:
    """Return when the file's contents, or the folder's entries, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
