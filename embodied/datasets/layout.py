"""The files of a dataset folder of ours, and how a spec becomes JSON and back.

`dataset.json` says what was recorded and how; `episodes.jsonl` has one line for every attempt, in order of completion;
`episodes/NNNNNN.safetensors` holds one kept attempt, pictures as they were rendered. An attempt counts once its line is
there, and its file is complete before that.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from embodied.errors import AssetError
from envs.api import ActionSpec, Bounds, CameraSpec, EnvSpec

FORMAT = "embodied-episodes"
VERSION = 1
DESCRIPTION = "dataset.json"
INDEX = "episodes.jsonl"
EPISODES = "episodes"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of the index.

    attempt: number of the attempt, which names the file. kept: whether there is a file. sha256: of the file.
    """

    attempt: int
    kept: bool
    steps: int
    success: bool
    returns: float
    instruction: str
    assignment: tuple[int, int, int]
    sha256: str | None = None

    @property
    def file(self) -> str:
        """Path of the episode's file inside the dataset."""
        return f"{EPISODES}/{self.attempt:06d}.safetensors"


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    """JSON-able values of a spec."""
    values = dataclasses.asdict(spec)
    values["action"]["kind"] = spec.action.kind.value
    return values


def spec_from_json(values: dict[str, Any]) -> EnvSpec:
    """The inverse of `spec_to_json`. Raises KeyError, TypeError or ValueError for anything else."""
    action = values["action"]
    bounds = {name: tuple(action[name]) for name in ("low", "high")}
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return EnvSpec(
        **{
            **plain,
            "action": ActionSpec(**{**action, **bounds, "kind": Bounds(action["kind"])}),
            "cameras": tuple(CameraSpec(**camera) for camera in values["cameras"]),
        }
    )


def read_description(folder: Path) -> dict[str, Any]:
    """The contents of `dataset.json`. Raises AssetError where it is missing, damaged or of another version."""
    path = folder / DESCRIPTION
    try:
        values = json.loads(path.read_text())
        kind, version = values["format"], values["version"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise AssetError(f"{path} does not describe a dataset ({type(error).__name__}: {error}).") from error
    if (kind, version) != (FORMAT, VERSION):
        raise AssetError(
            f"{path} says format {kind!r} version {version!r}; this program reads {FORMAT!r} version {VERSION}."
        )
    return values


def read_index(folder: Path) -> list[Entry]:
    """The lines of the index by attempt number; a last line that a kill cut short is left out.

    Raises AssetError for any other damage, naming the line.
    """
    path = folder / INDEX
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    entries: dict[int, Entry] = {}
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            entry = Entry(**{**values, "assignment": tuple(values["assignment"])})
        except (KeyError, TypeError, ValueError) as error:
            raise AssetError(f"{path}, line {number} is no entry of an index ({error}).") from error
        entries[entry.attempt] = entry
    return [entries[attempt] for attempt in sorted(entries)]
