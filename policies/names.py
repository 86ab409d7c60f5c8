"""How a policy is called: its kind and, where the kind comes in sizes, a preset."""

from __future__ import annotations


def split_name(name: str) -> tuple[str, str]:
    """(kind, preset) of `openvla_oft/7b`, also spelled `openvla-oft-7b`; the preset of `mlp` is empty."""
    kind, _, preset = name.partition("/")
    if not preset and "-" in name:
        kind, _, preset = name.rpartition("-")
        kind = kind.replace("-", "_")
    return kind, preset


def other_spelling(name: str) -> str:
    """`openvla-oft-7b` for `openvla_oft/7b`."""
    return name.replace("/", "-").replace("_", "-")
