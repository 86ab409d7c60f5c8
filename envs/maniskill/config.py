"""Options of a ManiSkill environment. Only data: nothing here imports the simulator."""

from __future__ import annotations

from typing import Literal

from embodied.config import config
from envs.api import EnvConfig
from envs.maniskill.splits import SplitName


@config
class ManiSkillConfig(EnvConfig):
    """Options of `maniskill/<task id>`.

    obs: "state" shows the simulator's full state vector; "rgb" shows the cameras, and as state what the robot itself
        can sense, with the full state as privileged part; "rgb+state" shows the cameras and the full state.
    control_mode: how actions move the robot; None takes the robot's default.
    reward: "dense" and "normalized_dense" are shaped by the task, "sparse" is 1 at success; "smooth" is a
        potential without gates from 0 to 1, and 1 more at success, for reward_form: relative (three tasks know it).
    split: which variations occur, for tasks that have some: "in" for training. PutOnPlate-v1's others differ from it in
        one respect each; of RL4VLA's PutOnPlateInScene25*, "out" shows what is held out, and "both" either.
    robot: robot id, e.g. "panda"; None takes the task's default.
    image_size: height and width of every policy camera, one number for both or two; None keeps the task's own size.
    cameras: names of the policy cameras; None takes all that the task has.
    field_of_view: degrees that every policy camera sees from top to bottom; None keeps the task's own.
    spread: objects start so many times further from the middle of their area, along x and y, than the task puts them;
        a target that is placed relative to its object moves with it. Physics, success and rewards are the same.
    robot_visual: "lowpoly" draws the robot by its collision meshes: several times cheaper, and coarser pictures.
    velocities: whether the joints' velocities are part of what the robot senses (obs: rgb). A policy that is fitted to
        smooth demonstrations can tell most actions from them, and then hardly looks at the pictures.
    hidden: names of objects (e.g. "ground", "table-workspace") left out of the policy cameras' pictures.
    sim_backend: "cpu" is exact and portable, "cuda" steps all environments on a GPU; "auto" is "cuda" where both a GPU
        and GPU physics are usable, else "cpu".
    stepping: "batched" steps all scenes of a process together, "single" steps stock environments one after the other;
        "auto" is "batched" where the task allows it.
    rendering: "on_demand" prepares pictures for people (`render`); "never" needs no graphics driver for state tasks.
    scene_seed: what is drawn once per scene and not per episode (only tasks with drawn geometry have such) comes from
        this seed under "batched", and is then the same in every environment.
    """

    obs: Literal["state", "rgb", "rgb+state"] = "state"
    control_mode: str | None = None
    reward: Literal["dense", "normalized_dense", "sparse", "smooth"] = "normalized_dense"
    split: SplitName = "in"
    robot: str | None = None
    image_size: int | tuple[int, int] | None = None
    cameras: tuple[str, ...] | None = None
    field_of_view: float | None = None
    spread: tuple[float, float] = (1.0, 1.0)
    robot_visual: Literal["stock", "lowpoly"] = "stock"
    velocities: bool = True
    hidden: tuple[str, ...] = ()
    sim_backend: Literal["auto", "cpu", "cuda"] = "auto"
    stepping: Literal["auto", "batched", "single"] = "auto"
    rendering: Literal["on_demand", "never"] = "never"
    scene_seed: int = 0

    def __post_init__(self) -> None:
        if self.picture_size is not None and not (min(self.picture_size) >= 8 and max(self.picture_size) <= 2048):
            raise ValueError(f"image_size is {self.image_size}; it must be between 8 and 2048 pixels")
        if self.field_of_view is not None and not 1 <= self.field_of_view < 180:
            raise ValueError(f"field_of_view is {self.field_of_view}; it must be from 1 to below 180 degrees")
        if self.cameras is not None and not self.cameras:
            raise ValueError("cameras names none; leave it out for all that the task has, or choose obs: state")
        if self.cameras is not None and len(set(self.cameras)) != len(self.cameras):
            raise ValueError(f"cameras names one camera twice: {', '.join(self.cameras)}")
        if not all(0 <= factor <= 4 for factor in self.spread):
            raise ValueError(f"spread is {self.spread}; both factors must be from 0 to 4")
        if not self.velocities and self.obs != "rgb":
            raise ValueError(f"velocities: false has no effect with obs: {self.obs}, which shows the full state")
        if self.sim_backend == "cuda" and self.stepping == "single":
            raise ValueError("stepping: single is for CPU physics; sim_backend: cuda steps all environments together")
        looks = (self.image_size, self.cameras, self.field_of_view, self.hidden or None)
        if self.obs == "state" and any(look is not None for look in looks):
            raise ValueError(
                "image_size, cameras, field_of_view and hidden have no effect with obs: state; "
                "choose obs: rgb or rgb+state"
            )

    @property
    def task(self) -> str:
        """The task id without its namespace, e.g. PickCube-v1."""
        return self.id.removeprefix("maniskill/")

    @property
    def picture_size(self) -> tuple[int, int] | None:
        """Height and width of every policy camera, None where the task's own is kept."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def shows_images(self) -> bool:
        """Whether cameras are part of the observation."""
        return self.obs != "state"

    @property
    def needs_renderer(self) -> bool:
        """Whether a graphics device is needed at all."""
        return self.shows_images or self.rendering == "on_demand"
