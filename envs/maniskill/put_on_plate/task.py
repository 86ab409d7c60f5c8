"""The task `PutOnPlate-v1` for ManiSkill: written against its public task interface, for any of its backends.

Every scene holds all shapes of its split; those that an episode does not use stand on the floor far behind the cameras.
What an episode is follows from its seed alone (see `draw`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.agents.robots import Panda
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.registration import register_env
from mani_skill.utils.structs import Pose

from envs.maniskill.put_on_plate.building import TABLE_HEIGHT, PlainTable, build_thing, paint
from envs.maniskill.put_on_plate.draw import Episode, Place, Thing, draw_episode
from envs.maniskill.put_on_plate.things import COLOURS, INSTRUCTIONS, contents

STEPS = 80
_CARRY = 0.1  # metres above the plate at which an object is carried
_HEIGHT_TOLERANCE = 0.006
_STILL, _TURNING = 0.02, 0.5  # metres and radians a second below which an object rests
_PARKED = (4.0, 0.4)  # x of the first unused body, and metres between them


@register_env("PutOnPlate-v1", max_episode_steps=STEPS)
class PutOnPlate(BaseEnv):
    """Success: the named object rests on the plate, and the hand has let go of it.

    The state is qpos, qvel, tcp pose, whether the object is grasped, poses of object and plate, tcp to object, object
    to the middle of the plate's surface, height at which the object rests, radius of the plate: 48 numbers.
    """

    SUPPORTED_ROBOTS = ["panda", "panda_wristcam"]  # noqa: RUF012  ManiSkill's own attribute
    agent: Panda

    def __init__(self, *args: Any, robot_uids: str = "panda", split: str = "in", **options: Any) -> None:
        self.contents = contents(split)
        self.instructions = INSTRUCTIONS
        self._listed = [INSTRUCTIONS.index(text) for text in self.contents.instructions()]
        super().__init__(*args, robot_uids=robot_uids, **options)

    @property
    def _default_sensor_configs(self) -> list[CameraConfig]:
        pose = sapien_utils.look_at(eye=[0.38, 0, 0.48], target=[-0.06, 0, 0.02])
        return [CameraConfig("base_camera", pose, 128, 128, 0.9, 0.01, 100)]

    @property
    def _default_human_render_camera_configs(self) -> CameraConfig:
        pose = sapien_utils.look_at([0.5, 0.55, 0.5], [-0.05, 0.0, 0.1])
        return CameraConfig("render_camera", pose, 512, 512, 1, 0.01, 100)

    # ---------------------------------------------------------------------------------------------- building

    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, sapien.Pose(p=[-0.615, 0, 0]))

    def _load_scene(self, options: dict[str, Any]) -> None:
        self.table = PlainTable(env=self, robot_init_qpos_noise=self.contents.starts)
        self.table.build()
        shapes, plates = self.contents.shapes, self.contents.plates
        self._away = [_parked(k, shape.rest) for k, shape in enumerate(shapes)]
        self._plates_away = [_parked(len(shapes) + k, plate.top / 2) for k, plate in enumerate(plates)]
        self.things = [
            build_thing(self.scene, shape.name, shape.parts, sapien.Pose(self._away[k]), fixed=False)
            for k, shape in enumerate(shapes)
        ]
        self.plates = [
            build_thing(self.scene, plate.name, plate.parts, sapien.Pose(self._plates_away[k]), fixed=True)
            for k, plate in enumerate(plates)
        ]
        self._rests = torch.tensor([shape.rest for shape in shapes], device=self.device)
        self._radii = torch.tensor([plate.radius for plate in plates], device=self.device)
        self._tops = torch.tensor([plate.top for plate in plates], device=self.device)
        none = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._shape, self._plate, self.instruction_ids = none.clone(), none.clone(), none.clone()

    # ---------------------------------------------------------------------------------------------- episodes

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict[str, Any]) -> None:
        self.table.initialize(env_idx)
        rows = env_idx.tolist()
        episodes = [draw_episode(int(self._episode_seed[row]), self.contents) for row in rows]
        for row, episode in zip(rows, episodes, strict=True):
            self._shape[row], self._plate[row] = episode.target.shape, episode.plate
            self.instruction_ids[row] = self._listed[episode.instruction]
            if self.scene.can_render():
                self._paint(row, episode)
        for k, (actor, shape) in enumerate(zip(self.things, self.contents.shapes, strict=True)):
            places = [_place_of(k, episode) for episode in episodes]
            actor.set_pose(self._poses(places, shape.rest, self._away[k]))
        for k, (actor, plate) in enumerate(zip(self.plates, self.contents.plates, strict=True)):
            places = [episode.plate_place if episode.plate == k else None for episode in episodes]
            actor.set_pose(self._poses(places, plate.top / 2, self._plates_away[k]))

    def _poses(self, places: list[Place | None], height: float, away: tuple[float, float, float]) -> Pose:
        """Upright on the table at `places`; where there is none, out of the way."""
        rows = [
            [*away, 1.0, 0.0, 0.0, 0.0]
            if place is None
            else [place.x, place.y, height, np.cos(place.turn / 2), 0.0, 0.0, np.sin(place.turn / 2)]
            for place in places
        ]
        return Pose.create(torch.tensor(rows, dtype=torch.float32, device=self.device))

    def _paint(self, row: int, episode: Episode) -> None:
        colours, shapes, plate = self.contents.colours, self.contents.shapes, self.contents.plates[episode.plate]
        for thing in filter(None, (episode.target, episode.distractor)):
            paint(self.things[thing.shape], row, COLOURS[colours[thing.colour]], shapes[thing.shape].parts)
        paint(self.plates[episode.plate], row, COLOURS[plate.colours[episode.plate_colour]], plate.parts)
        self.table.show(row, self.contents.looks[episode.look], episode.tint)

    # ---------------------------------------------------------------------------------------------- what is so

    def _of_target(self, values: list[torch.Tensor]) -> torch.Tensor:
        """[n, ...] of each environment's own object, from one [n, ...] for each shape."""
        return torch.stack(values)[self._shape, torch.arange(self.num_envs, device=self.device)]

    def _object_pose(self) -> torch.Tensor:
        return self._of_target([actor.pose.raw_pose for actor in self.things])

    def _plate_pose(self) -> torch.Tensor:
        poses = torch.stack([actor.pose.raw_pose for actor in self.plates])
        return poses[self._plate, torch.arange(self.num_envs, device=self.device)]

    def _surface(self) -> torch.Tensor:
        """float32 [n, 3]: the middle of the plate's surface."""
        surface = self._plate_pose()[:, :3].clone()
        surface[:, 2] += self._tops[self._plate] / 2
        return surface

    def evaluate(self) -> dict[str, torch.Tensor]:
        """bool [n] each: is_grasped, is_on_plate, is_still, success."""
        offset = self._object_pose()[:, :3] - self._surface()
        near = offset[:, :2].norm(dim=1) <= self._radii[self._plate]
        # one that has fallen over lies lower than one that stands, and counts as well
        low = offset[:, 2] <= self._rests[self._shape] + _HEIGHT_TOLERANCE
        on_plate = near & low & (offset[:, 2] > 0)
        still = self._of_target([actor.is_static(lin_thresh=_STILL, ang_thresh=_TURNING) for actor in self.things])
        grasped = self._of_target([self.agent.is_grasping(actor) for actor in self.things])
        self._evaluated = {
            "is_grasped": grasped,
            "is_on_plate": on_plate,
            "is_still": still,
            "success": on_plate & still & ~grasped,
        }
        return dict(self._evaluated)

    def _get_obs_extra(self, info: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        hand = self.agent.tcp.pose.raw_pose
        extra = {"tcp_pose": hand}
        if "state" in self.obs_mode:
            thing, surface = self._object_pose(), self._surface()
            extra |= {
                "is_grasped": info["is_grasped"],
                "object_pose": thing,
                "plate_pose": self._plate_pose(),
                "tcp_to_object": thing[:, :3] - hand[:, :3],
                "object_to_plate": surface - thing[:, :3],
                "rest": self._rests[self._shape],
                "radius": self._radii[self._plate],
            }
        return extra

    # ---------------------------------------------------------------------------------------------- rewards

    def _progress(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """float32 [n] each, 0 to 1: the hand is at the object; the object is on its way or there; the hand is open."""
        thing, surface = self._object_pose()[:, :3], self._surface()
        reach = 1 - torch.tanh(6 * (self.agent.tcp.pose.p - thing).norm(dim=1))
        aside = (thing[:, :2] - surface[:, :2]).norm(dim=1)
        # the way leads up, over and down: high while it is aside, low once it is over the plate
        want = self._rests[self._shape] + _CARRY * (aside / (2 * self._radii[self._plate])).clamp(max=1)
        height = (thing[:, 2] - surface[:, 2] - want).abs()
        carried = 1 - torch.tanh(5 * (aside + height))
        opened = (self.agent.robot.get_qpos()[:, -2:].sum(dim=1) / 0.08).clamp(max=1)
        return reach, carried, opened

    def compute_dense_reward(self, obs: Any, action: torch.Tensor, info: dict[str, torch.Tensor]) -> torch.Tensor:
        """float32 [n] in [0, 8]: reach (0 to 2), carry (3 to 5), let go on the plate (6 to 7), success (8)."""
        reach, carried, opened = self._progress()
        reward = 2 * reach
        reward = torch.where(info["is_grasped"], 3 + 2 * carried, reward)
        reward = torch.where(info["is_on_plate"], 6 + opened, reward)
        return torch.where(info["success"], torch.full_like(reward, 8.0), reward)

    def compute_normalized_dense_reward(
        self, obs: Any, action: torch.Tensor, info: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The dense reward in [0, 1]."""
        return self.compute_dense_reward(obs, action, info) / 8

    def potential(self) -> torch.Tensor:
        """float32 [n] in [0, 1]: how far the task has come as of the latest `evaluate`; it jumps at the grasp only."""
        reach, carried, opened = self._progress()
        grasped, on_plate = self._evaluated["is_grasped"].float(), self._evaluated["is_on_plate"].float()
        return 0.25 * reach + 0.2 * torch.maximum(grasped, on_plate) + 0.35 * carried + 0.2 * on_plate * opened


def _parked(place: int, height: float) -> tuple[float, float, float]:
    """Where body number `place` stands while it is not used."""
    first, apart = _PARKED
    return (first + apart * place, 0.0, height - TABLE_HEIGHT)


def _place_of(shape: int, episode: Episode) -> Place | None:
    """Where a shape stands in an episode; None if it is not used."""
    things: list[Thing] = [thing for thing in (episode.target, episode.distractor) if thing is not None]
    return next((thing.place for thing in things if thing.shape == shape), None)
