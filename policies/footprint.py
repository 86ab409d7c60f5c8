"""What each policy that comes by name needs: parameters, memory to act and to learn, pictures, statistics.

The numbers ship as `footprints.json`, because counting them for 7B takes minutes; `measuring` counts them anew, and
`embodied policies --measure --json` writes the file's contents. Nothing here imports torch: telling them is quick.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from pathlib import Path

from embodied.errors import ConfigurationError, suggest
from policies.names import split_name

NAMES = ("mlp", "cnn", "openvla/tiny", "openvla/7b", "openvla_oft/tiny", "openvla_oft/7b")
ENTRY_POINTS = "embodied.policies"  # the group by which other packages add theirs
_FILE = Path(__file__).with_name("footprints.json")


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What a policy needs, for an environment with 7 action dimensions, one camera and a state of 8 numbers (mlp: 42).

    parameters: count. Bytes at the peak, weights included: `act` for `act_batch` observations; `full` and `lora` for
    one gradient step with AdamW on `learn_batch` decisions: all weights in float32, or adapters of rank 32 (None: has
    none) on weights in `precision`, the type that acting uses too. 7B recomputes its layers and computes in bfloat16.
    pictures: side in pixels that pictures are resized to; 0 where none are looked at, None where any size does.
    statistics: what actions and states are normalised by.
    """

    name: str
    parameters: int
    precision: str
    act_batch: int
    act: int
    learn_batch: int
    full: int
    lora: int | None
    pictures: int | None
    cameras: str
    statistics: str


def shipped() -> list[Footprint]:
    """The footprints of all policies of this package, as measured before."""
    return [Footprint(**values) for values in json.loads(_FILE.read_text())]


def find(name: str) -> str:
    """The name as it is listed, from either spelling. Raises ConfigurationError for an unknown one."""
    for known in NAMES:
        if split_name(known) == split_name(name):
            return known
    if name.split("/")[0] in of_other_packages():
        raise ConfigurationError(f"policy {name!r} is another package's; what it needs is not known here.")
    raise ConfigurationError(f"Unknown policy {name!r}. " + suggest(name, NAMES, noun="policies"))


def of_other_packages() -> list[str]:
    """Kinds of policies that other installed packages provide."""
    ours = {split_name(name)[0] for name in NAMES}
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)} - ours)
