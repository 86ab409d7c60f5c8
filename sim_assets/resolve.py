"""Where an asset lies on this machine: an environment variable, the cache, what ships, an installed package.

Nothing is fetched here; `require` says how to fetch what is missing.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

from embodied.errors import AssetError
from sim_assets.catalogue import find_asset
from sim_assets.records import Archives, Asset, Bundled, Package, Root


@dataclasses.dataclass(frozen=True)
class Found:
    """Where an asset lies. how: "variable", "cache", "bundled" or "package"."""

    paths: tuple[Path, ...]
    how: str


def locate(asset: Asset) -> Found | None:
    """Where `asset` lies, None if nowhere. Raises AssetError where its environment variable names no folder."""
    chosen = chosen_folder(asset) if asset.root is Root.CACHE else None
    if chosen is not None:
        return Found((chosen,), "variable")
    if isinstance(asset.source, Bundled):
        return Found((asset.source.folder,), "bundled")
    if isinstance(asset.source, Archives):
        folders = model_folders(asset)
        return Found(folders, "cache") if folders and all(folder.is_dir() for folder in folders) else None
    if _holds_something(asset.folder):
        return Found((asset.folder,), "cache")
    if isinstance(asset.source, Package):
        folders = package_folders(asset.source)
        return Found(folders, "package") if folders else None
    return None


def _holds_something(place: Path) -> bool:
    """Whether there is a file, or a folder that is not empty: an empty one is what remains of something."""
    return place.is_file() or (place.is_dir() and any(place.iterdir()))


def require(name: str) -> tuple[Path, ...]:
    """The folders of an asset. Raises AssetError, saying how to get it, where it is not on this machine."""
    asset = find_asset(name)
    found = locate(asset)
    if found is None:
        raise AssetError(f"The asset {name!r} ({asset.title}) is not on this machine. {how_to_get(asset)}")
    return found.paths


def how_to_get(asset: Asset) -> str:
    """What to do to have it here, in one sentence: command, source, size, licence, folder, environment variable."""
    inside = f"with data/{asset.target} in it" if asset.root is Root.MANISKILL else "that holds its files"
    size = f"{asset.size / 1e6:.0f} MB" if asset.size else "size not stated"
    way = f"`embodied assets fetch {asset.name}` (from {asset.source.describe()}; {size}; licence: {asset.licence}), "
    way += f"which puts it into {asset.folder}"
    if isinstance(asset.source, Package):
        way = f"`{asset.source.describe()}` (licence: {asset.licence})"
    return f"Get it with {way}, or set {asset.variable} to a folder {inside}."


def chosen_folder(asset: Asset) -> Path | None:
    """The folder that the asset's environment variable names, None where it is not set. Raises AssetError where there
    is no such folder."""
    variable = asset.variable
    value = os.environ.get(variable)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise AssetError(
            f"{variable} is {value!r}, which is no folder. Unset it, or name the folder of {asset.name!r}."
        )
    return folder.resolve()


def model_names(source: Archives) -> tuple[str, ...]:
    """The models that the archives hold, empty where mani_skill, which lists them, is not installed."""
    spec = importlib.util.find_spec("mani_skill")
    if spec is None or not spec.submodule_search_locations:
        return ()
    assets = Path(spec.submodule_search_locations[0]) / "assets"
    return tuple(sorted({name for index in source.indices for name in json.loads((assets / index).read_text())}))


def model_folders(asset: Asset) -> tuple[Path, ...]:
    """Where the models of an asset of many archives lie, or would."""
    assert isinstance(asset.source, Archives)
    return tuple(asset.folder / name for name in model_names(asset.source))


def package_folders(source: Package) -> tuple[Path, ...]:
    """The folders of an installed package, empty where a distribution of it is missing."""
    try:
        installed = [importlib.metadata.distribution(name) for name in source.distributions]
    except importlib.metadata.PackageNotFoundError:
        return ()
    site = Path(str(installed[0].locate_file("")))
    folders = tuple(site / folder for folder in source.folders)
    return folders if all(folder.is_dir() for folder in folders) else ()


def package_files(source: Package) -> dict[str, dict[str, int | str]]:
    """Path relative to site-packages -> size and SHA-256, as the installed distributions record them."""
    files: dict[str, dict[str, int | str]] = {}
    for name in source.distributions:
        for path in importlib.metadata.distribution(name).files or ():
            text = path.as_posix()
            if path.hash is None or not text.startswith(tuple(f"{folder}/" for folder in source.folders)):
                continue
            digest = base64.urlsafe_b64decode(path.hash.value + "==").hex()
            files[text] = {"size": int(path.size or 0), "sha256": digest}
    return files
