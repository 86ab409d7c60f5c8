"""Checkpoints that are either complete or not there.

A checkpoint is written to a temporary folder, read back and compared by hash, flushed to the disk, and only then
renamed to `step_N`; older ones are removed after that. A run killed at any moment leaves the previous one intact.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError
from embodied.runs.files import flush_to_disk
from embodied.runs.state_file import read_state, write_state

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_STATE = "state"
_PARTIAL = ".partial_"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk. step: the iteration it was written after."""

    folder: Path
    step: int

    def state(self) -> dict[str, Any]:
        """The training state, after verifying every file against the manifest."""
        verify(self.folder)
        return read_state(self.folder / _STATE)


def verify(folder: Path, part: str = "") -> None:
    """Raise CheckpointError unless `folder` holds exactly the files its manifest lists, unchanged. part: a folder in it
    that alone is looked at."""
    try:
        listed = dict(json.loads((folder / MANIFEST).read_text())["sha256"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is not a complete checkpoint: its {MANIFEST} is unreadable ({error})"
        ) from None
    expected = {name: digest for name, digest in listed.items() if name.startswith(part)}
    files = {str(p.relative_to(folder)): p for p in _files(folder)}
    actual = {name: _hash(path) for name, path in files.items() if name.startswith(part)}
    if actual != expected:
        changed = sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
        raise CheckpointError(f"{folder} is damaged: {', '.join(changed)} differ from what was written")


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def path(self, step: int) -> Path:
        """The folder of the checkpoint after iteration `step`."""
        return self.folder / f"step_{step}"

    @contextlib.contextmanager
    def writing(self, step: int, state: dict[str, Any]) -> Iterator[Path]:
        """Write the state after iteration `step`; within the block further files (the policy) go into the folder given.

        The checkpoint is there once the block has ended. Raises CheckpointError (disk full, not writable, unsupported
        state); earlier checkpoints stay as they are.
        """
        target = self.path(step)
        partial = self.folder / f"{_PARTIAL}{target.name}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write_state(partial / _STATE, state)
            yield partial
            hashes = {str(p.relative_to(partial)): _hash(p) for p in _files(partial)}
            (partial / MANIFEST).write_text(json.dumps({"step": step, "sha256": hashes}, indent=2))
            for path in [*_files(partial), partial / MANIFEST, partial]:
                flush_to_disk(path)
            read_state(partial / _STATE)
            verify(partial)
            if target.exists():
                shutil.rmtree(target)
            partial.rename(target)
            flush_to_disk(self.folder)
        except (OSError, CheckpointError) as error:
            said = (getattr(error, "strerror", None) or str(error)).rstrip(".")
            raise CheckpointError(
                f"could not write a checkpoint to {target}: {said}. Earlier checkpoints are intact; "
                "free some space or point run.folder elsewhere."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # it would hold the full disk
        for old in self.all()[: -self.keep]:
            try:
                shutil.rmtree(old.folder)
            except OSError as error:  # the new one is complete, and the next turn tries again
                logger.warning(
                    "the old checkpoint %s cannot be removed: %s; remove it yourself",
                    old.folder,
                    error.strerror or error,
                )

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first; what a killed run left half-written is not among them."""
        if not self.folder.is_dir():
            return []
        found = []
        for path in self.folder.iterdir():
            match = re.fullmatch(r"step_(\d+)", path.name)
            if match and (path / MANIFEST).is_file():
                found.append(Checkpoint(path, int(match[1])))
        return sorted(found, key=lambda c: c.step)

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        return (self.all() or [None])[-1]
