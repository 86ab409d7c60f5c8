"""Named evaluation and training protocols: how long a scene settles and after how many steps an episode is cut.

What a policy does with the pictures (JPEG, crop, resize) is the policy's business and not listed here. Sources: the
evaluation script of OpenVLA-OFT, the LIBERO recipes of RLinf, and SimpleVLA-RL.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

ProtocolName = Literal["openvla_oft", "rlinf", "simplevla"]

FAMILIES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


@dataclasses.dataclass(frozen=True)
class Protocol:
    """settling_steps: no-op actions after a reset, before the policy sees anything (the gripper is held open).

    step_limits: control steps of an episode (settling not counted), by suite family.
    """

    settling_steps: int
    step_limits: dict[str, int]


def _limits(spatial: int, object_: int, goal: int, long: int, ninety: int) -> dict[str, int]:
    return dict(zip(FAMILIES, (spatial, object_, goal, long, ninety), strict=True))


PROTOCOLS: dict[str, Protocol] = {
    "openvla_oft": Protocol(settling_steps=10, step_limits=_limits(220, 280, 300, 520, 400)),
    "rlinf": Protocol(settling_steps=15, step_limits=_limits(240, 240, 320, 512, 512)),
    "simplevla": Protocol(settling_steps=10, step_limits=_limits(512, 512, 512, 512, 512)),
}
