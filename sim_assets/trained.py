"""Small trained policies that ship, in `sim_assets/checkpoints`; a README in each says how it came about."""

from __future__ import annotations

from pathlib import Path

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def bundled_checkpoints() -> list[str]:
    """Names of the policies that ship."""
    return sorted(path.parent.name for path in CHECKPOINTS.glob("*/policy.json"))


def bundled_checkpoint(name: str) -> Path | None:
    """The folder of the policy that ships under `name`; None where there is none."""
    return CHECKPOINTS / name if name in bundled_checkpoints() else None
