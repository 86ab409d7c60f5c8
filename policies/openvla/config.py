"""Options of the OpenVLA policy."""

from __future__ import annotations

from embodied.config import config
from policies.vla.options import VLAConfig


@config
class OpenVLAConfig(VLAConfig):
    """OpenVLA: one camera, action tokens decoded one after another. See `VLAConfig` for the options."""

    name: str = "openvla/7b"
