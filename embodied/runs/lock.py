"""One process at a time writes a folder."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from embodied.errors import RefusedInput

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def writing_alone(folder: Path) -> Iterator[None]:
    """Have the folder to oneself for the time of the block; it ends with the process, however that ends.

    Raises RefusedInput where another process has it. A file system without locks is said and not refused.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedInput(
                f"another process is writing {folder}; wait until it has ended, stop it, or name another folder"
            ) from None
        except OSError as error:
            logger.warning("%s cannot be locked (%s): let no second process write it", folder, error.strerror)
        yield
    finally:
        os.close(descriptor)
