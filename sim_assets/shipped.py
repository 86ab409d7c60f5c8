"""Registry entries for what ships inside this package: every folder of `checkpoints/` that has a manifest."""

from __future__ import annotations

from pathlib import Path

from sim_assets.manifest import MANIFEST, read_manifest
from sim_assets.records import Asset, Bundled
from sim_assets.trained import CHECKPOINTS


def shipped_assets(folder: Path = CHECKPOINTS) -> tuple[Asset, ...]:
    """The assets that ship, by name. Raises AssetError for a damaged manifest."""
    return tuple(_asset(path.parent) for path in sorted(folder.glob(f"*/{MANIFEST}")))


def _asset(folder: Path) -> Asset:
    record = read_manifest(folder / MANIFEST)
    return Asset(
        name=folder.name,
        title=str(record["title"]),
        licence=str(record["licence"]),
        source=Bundled(folder),
        needed_by=tuple(str(name) for name in record.get("needed_by", ())),
        size=sum(entry["size"] for entry in record["files"].values()),
    )
