"""Writing a dataset of ours: one file an episode, complete on disk before the index mentions it.

A folder that the same recording has begun is gone on with.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch

from embodied import __version__
from embodied.datasets.episode import Episode, check_episode
from embodied.datasets.layout import (
    DESCRIPTION,
    EPISODES,
    FORMAT,
    INDEX,
    VERSION,
    Entry,
    file_hash,
    read_description,
    read_index,
    spec_to_json,
)
from embodied.errors import CheckpointError, RefusedInput
from embodied.runs.files import flush_to_disk
from envs.api import EnvSpec


class DatasetWriter:
    """Writes episodes into `folder`, a new one or one begun by the same recording.

    spec: what is recorded. fps: control steps a second. origin: JSON-able values that decide what is recorded; a folder
    begun with others is refused. Raises RefusedInput where the folder cannot take this recording.
    """

    def __init__(self, folder: Path, spec: EnvSpec, fps: float, origin: dict[str, Any]) -> None:
        self.folder, self.spec = folder, spec
        description = {
            "format": FORMAT,
            "version": VERSION,
            "embodied": __version__,
            "fps": fps,
            "spec": spec_to_json(spec),
            "origin": origin,
        }
        description = _as_read_back(description)
        try:
            (folder / EPISODES).mkdir(parents=True, exist_ok=True)
            if (folder / DESCRIPTION).is_file():
                _require_same(folder, read_description(folder), description)
            else:
                _write_complete(folder / DESCRIPTION, json.dumps(description, indent=2).encode())
            self._entries = {entry.attempt: entry for entry in read_index(folder)}
            self._drop_torn_line()
            self._index = (folder / INDEX).open("a")
        except OSError as error:
            raise RefusedInput(
                f"the dataset folder {folder} cannot be written: {error.strerror or error}. Choose another."
            ) from None

    @property
    def entries(self) -> list[Entry]:
        """What has been recorded, by attempt."""
        return [self._entries[attempt] for attempt in sorted(self._entries)]

    @property
    def kept(self) -> int:
        """How many episodes the dataset has."""
        return sum(entry.kept for entry in self._entries.values())

    def add(self, attempt: int, episode: Episode) -> None:
        """Keep an episode; complete on disk when this returns. Raises CheckpointError when it cannot be written."""
        entry = _entry(attempt, episode, kept=True)
        path = self.folder / entry.file
        check_episode(episode, self.spec, entry.file)
        partial = path.with_name(f".{path.name}.part")
        try:
            tensors = {name: tensor.contiguous() for name, tensor in episode.tensors().items()}
            if tensors["labels"].data_ptr() == tensors["actions"].data_ptr():  # an undisturbed expert's are one tensor
                tensors["labels"] = tensors["labels"].clone()
            safetensors.torch.save_file(tensors, partial)
            partial.chmod((self.folder / INDEX).stat().st_mode)  # readable for whom the rest is
            flush_to_disk(partial)
            entry = dataclasses.replace(entry, sha256=file_hash(partial))
            os.replace(partial, path)
            self._note(entry)
        except (OSError, safetensors.SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise CheckpointError(
                f"episode {attempt} could not be written to {self.folder}: {error}. Free some space; what is there "
                "stays, and the same command goes on from it."
            ) from error

    def reject(self, attempt: int, episode: Episode) -> None:
        """Note that an attempt was made and is not kept."""
        self._note(_entry(attempt, episode, kept=False))

    def _note(self, entry: Entry) -> None:
        self._index.write(json.dumps(dataclasses.asdict(entry)) + "\n")
        self._index.flush()
        os.fsync(self._index.fileno())
        self._entries[entry.attempt] = entry

    def _drop_torn_line(self) -> None:
        path = self.folder / INDEX
        text = path.read_bytes() if path.is_file() else b""
        if text and not text.endswith(b"\n"):
            _write_complete(path, text[: text.rfind(b"\n") + 1])

    def close(self) -> None:
        """Close the index; safe to call twice."""
        self._index.close()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _entry(attempt: int, episode: Episode, *, kept: bool) -> Entry:
    return Entry(
        attempt=attempt,
        kept=kept,
        steps=len(episode),
        success=episode.succeeded,
        returns=float(episode.rewards.sum()),
        instruction=episode.instruction,
        assignment=episode.assignment,
    )


def require_same_origin(folder: Path, origin: dict[str, Any]) -> None:
    """Refuse a folder that another recording has begun, as far as that shows before what is recorded can be described.

    origin: as `DatasetWriter` takes it. Raises RefusedInput.
    """
    if (folder / DESCRIPTION).is_file():
        _require_same(folder, read_description(folder), _as_read_back({"origin": origin}))


def _as_read_back(description: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(description))  # tuples become lists


def _require_same(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = [
        f"{section}.{key} is {found[section].get(key)!r} there, {wanted[section].get(key)!r} here"
        for section in ("origin", "spec")
        if section in wanted
        for key in sorted({*found[section], *wanted[section]})
        if found[section].get(key) != wanted[section].get(key)
    ]
    if differing:
        raise RefusedInput(
            f"{folder} holds another recording: {'; '.join(differing)}. Choose another folder, or record with the same "
            "options to go on with it."
        )


def _write_complete(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(content)
    flush_to_disk(partial)
    os.replace(partial, path)
