"""Options of a LIBERO environment. Only data: nothing here imports the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic

from embodied.config import config
from embodied.errors import ConfigurationError, suggest
from envs.api import EnvConfig
from envs.libero.magnitudes import validate
from envs.libero.protocols import PROTOCOLS, ProtocolName
from envs.libero.suites import families_of_tasks, split_id
from sim_assets.catalogue import LIBERO
from sim_assets.resolve import chosen_folder

CAMERAS = ("agentview", "robot0_eye_in_hand", "frontview", "sideview", "birdview", "galleryview")


@config
class LiberoConfig(EnvConfig):
    """Options of `libero/<suite>`, or `libero/<suite>:<task number or name>` for a single task.

    protocol: settling steps and step limits as in OpenVLA-OFT's evaluation, RLinf or SimpleVLA-RL.
    mode: "faithful" gives the numbers and pixels of the stock simulator, bit for bit; "fast" (for training) rounds the
        controller's arithmetic differently and draws simplified meshes without antialiasing, shadows and reflections.
    cameras: names of the policy cameras, in the order of the pictures; empty for state only.
    image_size: height and width of every picture.
    perturb: kind -> severity from 1 to 5, e.g. `{camera: 2, light: 3}`; see `envs.libero.perturbations` for the kinds.
    assets: folder with `bddl_files/`, `init_files/` and `assets/`; None takes the one that EMBODIED_ASSET_LIBERO names,
        else those of the installed package.
    """

    protocol: ProtocolName = "openvla_oft"
    mode: Literal["faithful", "fast"] = "faithful"
    cameras: tuple[str, ...] = ("agentview", "robot0_eye_in_hand")
    image_size: int = 256
    perturb: dict[str, int] = pydantic.Field(default_factory=dict)
    assets: str | None = None

    def __post_init__(self) -> None:
        split_id(self.id)
        validate(self.perturb)
        for camera in self.cameras:
            if camera not in CAMERAS:
                raise ConfigurationError(
                    f"cameras contains {camera!r}. {suggest(camera, CAMERAS, noun='LIBERO cameras')}"
                )
        if len(set(self.cameras)) != len(self.cameras):
            raise ConfigurationError(f"cameras names one camera twice: {', '.join(self.cameras)}.")
        if not 8 <= self.image_size <= 2048:
            raise ConfigurationError(f"image_size is {self.image_size}; it must be between 8 and 2048 pixels.")
        if self.assets is not None and not Path(self.assets).expanduser().is_dir():
            raise ConfigurationError(
                f"assets is {self.assets!r}, which is no folder. Leave it out for the package's own."
            )

    @property
    def suite(self) -> str:
        """The suite's name, e.g. libero_spatial."""
        return split_id(self.id)[0]

    @property
    def asset_folder(self) -> Path | None:
        """The folder of `assets`, or of the variable EMBODIED_ASSET_LIBERO; None for the installed package's files."""
        return chosen_folder(LIBERO) if self.assets is None else Path(self.assets).expanduser().resolve()

    @property
    def step_limits(self) -> tuple[int, ...]:
        """Control steps of an episode of each task under the protocol."""
        suite, number = split_id(self.id)
        limits = tuple(PROTOCOLS[self.protocol].step_limits[family] for family in families_of_tasks(suite))
        return limits if number is None else (limits[number],)

    @property
    def longest_episode(self) -> int:
        """Control steps of the longest episode, the protocol's unless `episode_steps` says otherwise."""
        return max(self.step_limits) if self.episode_steps is None else self.episode_steps

    @property
    def settling_steps(self) -> int:
        """No-op steps after a reset under the protocol."""
        return PROTOCOLS[self.protocol].settling_steps
