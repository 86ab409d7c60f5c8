"""Brings a missing asset: downloads, checks what came, unpacks it beside its place and moves it there in one step.

What was fetched is recorded, file by file, so that `check` can tell later whether it is still whole.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from embodied.errors import AssetError
from sim_assets.manifest import MANIFEST, describe_files, faults, read_manifest, sha256_of, tree_digest
from sim_assets.records import Archive, Archives, Asset, Bundled, Package, Repository
from sim_assets.resolve import Found, locate, model_folders, model_names, package_files

Progress = Callable[[str, int, int], None]
"""Told what comes, the bytes so far, and the bytes in all (0: not known)."""

_TIMEOUT_SECONDS = 60.0
_BLOCK = 1 << 18


def _silent(what: str, done: int, total: int) -> None:
    """Progress nobody looks at."""


def fetch(asset: Asset, given: Path | None = None, on_progress: Progress = _silent) -> Found:
    """Bring `asset` here, from `given` (a folder with its files, or the archive its source offers) or from its source.

    Nothing is done where it is here already. Raises AssetError where it cannot be had, saying what to do by hand.
    """
    found = locate(asset)
    if found is not None and given is None:
        return found
    source = asset.source
    if isinstance(source, Bundled | Package) and given is None:
        raise AssetError(f"{asset.name} is not fetched but installed: `{source.describe()}`.")
    if given is not None and not given.exists():
        raise AssetError(f"There is no {given} to take {asset.name} from.")
    if given is not None and isinstance(source, Archives) and given.is_file():
        raise AssetError(f"{asset.name} comes in many archives: unpack them all into one folder, and name that.")
    if given is not None and given.is_dir():
        _install(asset, lambda place: shutil.copytree(given, place, dirs_exist_ok=True))
    elif given is not None:
        _install(asset, lambda place: _unpack(_checked(given, asset.sha256), given.name, place))
    elif isinstance(source, Archive):
        _install(asset, lambda place: _download_archive(source, place, on_progress))
    elif isinstance(source, Archives):
        for name in model_names(source):
            if not (asset.folder / name).is_dir():
                archive = Archive(source.url.format(model=name))
                with _place(asset.folder / name) as place:
                    _download_archive(archive, place, on_progress)
        _record(asset, asset.folder, [path for folder in model_folders(asset) for path in folder.rglob("*")])
    elif isinstance(source, Repository):
        _install(asset, lambda place: _download_repository(source, place))
    found = locate(asset)
    if found is None:
        raise AssetError(f"{asset.name} was fetched, but is incomplete: see {asset.folder}.")
    return found


def check(asset: Asset, on_file: Callable[[str], None] | None = None) -> list[str] | None:
    """What is wrong with the files of an asset that is here; empty: nothing; None: there is no record to check against.

    Raises AssetError for an asset that is not here.
    """
    found = locate(asset)
    if found is None:
        raise AssetError(f"{asset.name} is not on this machine: `embodied assets fetch {asset.name}`.")
    if found.how == "bundled":
        return faults(found.paths[0], read_manifest(found.paths[0] / MANIFEST)["files"], on_file)
    if found.how == "package":
        assert isinstance(asset.source, Package)
        files = package_files(asset.source)
        site = found.paths[0].parents[asset.source.folders[0].count("/")]
        wrong = faults(site, files, on_file)
        digest = tree_digest({path: str(entry["sha256"]) for path, entry in files.items()})
        if asset.sha256 is not None and digest != asset.sha256:
            wrong.append(f"the installed version is another than the registry's (digest {digest[:12]}...)")
        return wrong
    record = _record_file(asset)
    if found.how == "variable" or not record.is_file():
        return None
    return faults(asset.folder, read_manifest(record)["files"], on_file)


# -- one archive, one repository --------------------------------------------------------------------------------------


def _download_archive(source: Archive, place: Path, on_progress: Progress) -> None:
    name = Path(urllib.parse.urlparse(source.url).path).name
    file = place.parent / f"{place.name}.download"
    try:
        _download(source.url, file, name, on_progress)
        _unpack(_checked(file, source.sha256), name, place)
    finally:
        file.unlink(missing_ok=True)


def _download(url: str, file: Path, name: str, on_progress: Progress) -> None:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as reply, file.open("wb") as out:
            total, done = int(reply.headers.get("Content-Length") or 0), 0
            while block := reply.read(_BLOCK):
                out.write(block)
                done += len(block)
                on_progress(name, done, total)
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise AssetError(
            f"{url} could not be downloaded: {reason}. On a machine without the network, download it elsewhere and "
            "give the file: `embodied assets fetch NAME --from FILE`."
        ) from None
    except OSError as error:
        raise AssetError(
            f"{file} cannot be written: {error.strerror or error}. Make room, or set another folder."
        ) from None
    if total and done != total:
        raise AssetError(f"{url} ended after {done} of {total} bytes. Fetch it again.")


def _checked(file: Path, sha256: str | None) -> Path:
    if sha256 is not None:
        came = sha256_of(file)
        if came != sha256:
            raise AssetError(
                f"{file.name} is not what its publisher states: SHA-256 {came} instead of {sha256}. Nothing was "
                "installed. Fetch it again; if it stays so, the publisher has replaced the file."
            )
    return file


def _unpack(file: Path, name: str, place: Path) -> None:
    """A zip archive's content, without the one folder that may hold it all; another file as it is."""
    if not name.endswith(".zip"):
        place.mkdir(parents=True)
        shutil.copyfile(file, place / name)
        return
    try:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(place)  # drops absolute paths and `..`
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # of an encrypted one: RuntimeError
        raise AssetError(f"{file} is no zip archive that can be unpacked: {error}. Fetch it again.") from None
    inside = list(place.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        only = inside[0].rename(place.parent / f"{place.name}.inner")
        place.rmdir()
        only.rename(place)


def _download_repository(source: Repository, place: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        snapshot_download(source.repo_id, repo_type="dataset", revision=source.revision, local_dir=place)
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError) as error:
        raise AssetError(
            f"{source.describe()} could not be downloaded: {str(error).splitlines()[0]} On a machine without the "
            f"network, run `hf download --repo-type dataset {source.repo_id} --local-dir FOLDER` elsewhere and give "
            "the folder: `embodied assets fetch NAME --from FOLDER`."
        ) from None
    shutil.rmtree(place / ".cache", ignore_errors=True)  # the hub library's own notes


# -- putting things in place ------------------------------------------------------------------------------------------


def _install(asset: Asset, bring: Callable[[Path], Any]) -> None:
    with _place(asset.folder) as place:
        bring(place)
        if not any(place.rglob("*")):
            raise AssetError(f"Nothing came for {asset.name}: {asset.source.describe()} is empty.")
    _record(asset, asset.folder, list(asset.folder.rglob("*")))


@contextlib.contextmanager
def _place(target: Path) -> Iterator[Path]:
    """A folder that does not exist yet, beside `target`, that takes its place once all went well."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise AssetError(f"{target.parent} cannot be written: {error.strerror or error}.") from None
    try:
        yield room / "new"
        if target.exists():
            os.replace(target, room / "old")
        os.replace(room / "new", target)
    except OSError as error:
        if (room / "old").exists() and not target.exists():
            os.replace(room / "old", target)
        raise AssetError(
            f"{target} could not be put in place: {error}. Nothing was installed. Make room, or set another folder."
        ) from None
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _record_file(asset: Asset) -> Path:
    return asset.root.folder() / ".embodied" / f"{asset.name}.json"


def _record(asset: Asset, folder: Path, paths: list[Path]) -> None:
    record = {
        "format": 1,
        "name": asset.name,
        "title": asset.title,
        "licence": asset.licence,
        "from": asset.source.describe(),
        "files": describe_files(folder, sorted(path for path in paths if path.is_file())),
    }
    file = _record_file(asset)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=2) + "\n")
    except OSError as error:
        with contextlib.suppress(OSError):
            file.unlink()  # a torn record would speak of damage
        raise AssetError(
            f"{asset.name} is in place, but the record to verify it by, {file}, cannot be written: "
            f"{error.strerror or error}. Make room and fetch it again with --from {folder}."
        ) from None
