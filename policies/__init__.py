"""Policies: one contract (`policies.api`) over OpenVLA, OpenVLA-OFT and small networks.

`policies.build(name, interface, seed=0, **options)`, `policies.load(folder)`, `policies.save(policy, folder)`;
`policies.check(policy, observation)` runs the conformance suite.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policies.conformance import check
    from policies.registry import build, load, save

__all__ = ["build", "check", "load", "save"]


def __getattr__(name: str) -> Any:
    # torch is loaded when used, not by `import policies`
    if name in __all__:
        module = importlib.import_module("policies.conformance" if name == "check" else "policies.registry")
        return getattr(module, name)
    raise AttributeError(f"module 'policies' has no attribute {name!r}")
