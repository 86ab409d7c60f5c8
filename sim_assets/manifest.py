"""Manifests: the files of a folder with size and SHA-256, written once and checked as often as wanted.

A manifest is JSON: `format` 1, `name`, `title`, `licence`, `needed_by` (environment ids, policies or recipes) and
`files` (relative path -> `size`, `sha256`); further keys are kept. `python -m sim_assets.manifest FOLDER ...` writes
one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from embodied.errors import AssetError

MANIFEST = "manifest.json"
_BLOCK = 1 << 20


def sha256_of(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hexadecimal SHA-256 of a file; `on_bytes` hears of every piece that was read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            if on_bytes is not None:
                on_bytes(len(block))
    return digest.hexdigest()


def tree_digest(files: Mapping[str, str]) -> str:
    """SHA-256 of a folder: of the sorted lines `<sha256>  <relative path>\\n`, as `sha256sum` would list its files."""
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def files_below(folder: Path) -> list[Path]:
    """All files that a manifest of `folder` lists: everything but the manifest and Python's own caches."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path for path in found if path != folder / MANIFEST)


def describe_files(folder: Path, paths: Iterable[Path] | None = None) -> dict[str, dict[str, Any]]:
    """Relative path -> size and SHA-256 of the files below `folder`."""
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in (files_below(folder) if paths is None else paths)
    }


def write_manifest(
    folder: Path, *, title: str, licence: str, needed_by: Iterable[str] = (), **more: Any
) -> dict[str, Any]:
    """Write the manifest of `folder` into it and return it; `more` are further keys, e.g. how the files were made."""
    record = {
        "format": 1,
        "name": folder.name,
        "title": title,
        "licence": licence,
        "needed_by": list(needed_by),
        **more,
        "files": describe_files(folder),
    }
    (folder / MANIFEST).write_text(json.dumps(record, indent=2) + "\n")
    return record


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest file. Raises AssetError for one that is missing or damaged."""
    try:
        record = json.loads(path.read_text())
        for entry in record["files"].values():
            int(entry["size"]), str(entry["sha256"])
        for key in ("title", "licence"):
            str(record[key])
    except FileNotFoundError:
        raise AssetError(f"{path} is missing: nothing says which files belong there and what they should be.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AssetError(f"{path} is no manifest: {type(error).__name__}: {error}. Install the files anew.") from None
    return record


def faults(
    folder: Path, files: Mapping[str, Mapping[str, Any]], on_file: Callable[[str], None] | None = None
) -> list[str]:
    """What is wrong with the files of `folder`: missing, of another size, or of other content. Empty: nothing."""
    found = []
    for name, entry in files.items():
        path = folder / name
        if on_file is not None:
            on_file(name)
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != entry["size"]:
            found.append(f"{name} has {path.stat().st_size} bytes instead of {entry['size']}")
        elif sha256_of(path) != entry["sha256"]:
            found.append(f"{name} has another SHA-256 than {entry['sha256'][:12]}...")
    return found


def main() -> None:
    """Write the manifest of a folder that is to ship."""
    parser = argparse.ArgumentParser(description="Write manifest.json for a folder of assets.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--title", required=True, help="what it is, in one line")
    parser.add_argument("--licence", required=True, help="e.g. Apache-2.0")
    parser.add_argument("--needed-by", nargs="*", default=[], help="environment ids, policies or recipes")
    parser.add_argument("--made-by", default="", help="the command and seed that made the files")
    args = parser.parse_args()
    record = write_manifest(
        args.folder, title=args.title, licence=args.licence, needed_by=args.needed_by, made_by=args.made_by
    )
    print(f"{args.folder / MANIFEST}: {len(record['files'])} files")


if __name__ == "__main__":
    main()
