"""RL4VLA's tasks for ManiSkill: written against its public task interface, for any of its backends.

Every scene holds all things that its task and split can show; those that an episode does not use stand on a shelf
behind the camera. What an episode is follows from its seed alone (see `draw`).

On the CPU things fall onto the table and come to rest before an episode begins, while the robot waits above, as RL4VLA
does it. On a GPU, where environments cannot be advanced one by one, they fall the last centimetres in the first step,
as RLinf does it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.agents.robots.widowx.widowx import WidowX250S
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.tasks.digital_twins.bridge_dataset_eval.base_env import WidowX250SBridgeDatasetFlatTable
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.geometry.rotation_conversions import quaternion_to_matrix
from mani_skill.utils.registration import REGISTERED_ENVS, register_env
from mani_skill.utils.structs import Actor, Pose
from mani_skill.utils.structs.types import SimConfig

from envs.maniskill.rl4vla import overlay, scene
from envs.maniskill.rl4vla.collection import Model, read_collection, read_picture
from envs.maniskill.rl4vla.draw import Episode, draw_episode, standing
from envs.maniskill.rl4vla.places import Layout
from envs.maniskill.rl4vla.variants import STEPS, VARIANTS, Variant
from sim_assets import require

CAMERA = "3rd_view_camera"
PICTURE = (480, 640)  # height and width that the camera's intrinsics are for
_ROBOT_AT = sapien.Pose([0.147, 0.028, 0.870], [0, 0, 0, 1])
_ROBOT_ASIDE = sapien.Pose([0.147, 0.028, 1.870], [0, 0, 0, 1])
_ROBOT_BUILT_AT = sapien.Pose([0.127, 0.060, 0.85], [0, 0, 0, 1])
_START = (-0.01840777, 0.0398835, 0.22242722, -0.00460194, 1.36524296, 0.00153398, 0.037, 0.037)
_DROPPED_FROM = {"settled": (0.95, 0.92, 1.0), "at once": (0.90, 0.90, 0.90)}  # object, plate, third; metres
_SETTLE, _SETTLE_MORE = 50, 600  # physics steps, 2 ms each
_SLOW, _SLOW_TURN = 1e-3, 1e-2  # metres and radians a second, summed, below which nothing more is waited for
_MOVES_AFTER = 5  # steps, in the task that moves the object
_HELD_STEPS = 5
_ASIDE, _ABOVE, _FORCE = 0.01, 0.05, 0.03  # metres, metres, newtons
_MOST_REWARD = 1.2


class PutOnPlateInScene(BaseEnv):
    """Success: the object is over the plate, not high above it, and presses on it.

    The state is qpos, qvel, pose of the hand, whether the object is grasped, poses of object and plate, hand to object,
    object to plate.
    """

    SUPPORTED_REWARD_MODES = ["dense", "normalized_dense", "sparse", "none"]  # noqa: RUF012  ManiSkill's own attribute
    agent: WidowX250S
    variant: Variant

    def __init__(self, *args: Any, split: str = "in", **options: Any) -> None:
        self.split = split
        self._stage = require("maniskill-bridge-v2-real2sim")[0]
        self.collection = read_collection(require("rl4vla-put-on-plate")[0])
        self.instructions = self.collection.instructions
        super().__init__(*args, robot_uids=WidowX250SBridgeDatasetFlatTable, **options)

    @property
    def _default_sim_config(self) -> SimConfig:
        return SimConfig(sim_freq=500, control_freq=5, spacing=20)

    @property
    def _default_human_render_camera_configs(self) -> CameraConfig:
        pose = sapien.Pose([0.00, -0.16, 0.336], [0.909182, -0.0819809, 0.347277, 0.214629])
        mount = self.agent.robot.links_map["base_link"]
        return CameraConfig("render_camera", pose, 512, 512, intrinsic=intrinsic(512, 512), mount=mount)

    # ---------------------------------------------------------------------------------------------- building

    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, _ROBOT_BUILT_AT)

    def _load_scene(self, options: dict[str, Any]) -> None:
        if self.scene.can_render():
            for robot in self.agent.robot._objs:
                sapien_utils.set_articulation_render_material(robot, specular=0.9, roughness=0.3)
        scene.build_stage(self.scene, self._stage)
        scene.build_shelf(self.scene)
        plates = self.variant.plates.of("both" if self.variant.second == "plate" else self.split)
        self._models: dict[str, Model] = {}
        self.things = self._build("object", self.collection.objects, self.variant.objects.of(self.split))
        self.plates = self._build("plate", self.collection.plates, plates)
        none = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._thing, self._plate, self.instruction_ids = none + min(self.things), none.clone(), none.clone()
        self._counted, self._held_steps = none - 1, none.clone()
        self._grasped_once, self._held_once = none.bool(), none.bool()
        self._thing_half = torch.zeros(self.num_envs, 3, device=self.device)
        self._plate_half = self._thing_half.clone()
        self._episodes: list[Episode | None] = [None] * self.num_envs

    def _build(self, kind: str, models: tuple[Model, ...], numbers: range) -> dict[int, Actor]:
        actors = {}
        for number in numbers:
            name = f"{kind}_{number}"
            self._away[name] = scene.on_shelf(len(self._away), models[number])
            actors[number] = scene.build_model(self.scene, models[number], name, self._away[name])
        return actors

    @functools.cached_property
    def _away(self) -> dict[str, list[float]]:
        """Where each thing stands while it is not used."""
        return {}

    def _load_lighting(self, options: dict[str, Any]) -> None:
        self.scene.set_ambient_light([0.3, 0.3, 0.3])
        self.scene.add_directional_light([0, 0, -1], [2.2, 2.2, 2.2])
        self.scene.add_directional_light([-1, -0.5, -1], [0.7, 0.7, 0.7])
        self.scene.add_directional_light([1, 1, -1], [0.7, 0.7, 0.7])

    # ---------------------------------------------------------------------------------------------- episodes

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict[str, Any]) -> None:
        rows = env_idx.tolist()
        drawn = [draw_episode(int(self._episode_seed[row]), self.variant, self.split) for row in rows]
        for row, episode in zip(rows, drawn, strict=True):
            self._episodes[row] = episode
            self._thing[row], self._plate[row] = episode.thing, episode.plate
            text = self.collection.instruction(episode.phrase, episode.thing, episode.plate)
            self.instruction_ids[row] = self.instructions.index(text)
        start = torch.tensor([[*episode.start, 0.0, 0.0] for episode in drawn], device=self.device)
        start = (start + torch.tensor(_START, device=self.device)).float()
        self.agent.robot.set_pose(_ROBOT_ASIDE)
        self.agent.reset(init_qpos=start)
        self._place(drawn)
        self._settle(env_idx)
        self.agent.robot.set_pose(_ROBOT_AT)
        self.agent.reset(init_qpos=start)
        self._thing_half[env_idx] = self._half_sizes(self.things, self.collection.objects, self._thing, env_idx)
        self._plate_half[env_idx] = self._half_sizes(self.plates, self.collection.plates, self._plate, env_idx)
        self._counted[env_idx], self._held_steps[env_idx] = -1, 0
        self._grasped_once[env_idx], self._held_once[env_idx] = False, False

    def _place(self, drawn: list[Episode]) -> None:
        """Put the things of the episodes that begin above the table, all others on the shelf."""
        heights = _DROPPED_FROM["settled" if self._settles else "at once"]
        for number, actor in self.things.items():
            actor.set_pose(self._poses(actor.name, [_thing_place(number, e, self.variant, heights) for e in drawn]))
        for number, actor in self.plates.items():
            actor.set_pose(self._poses(actor.name, [_plate_place(number, e, self.variant, heights) for e in drawn]))

    def _poses(self, name: str, places: list[list[float] | None]) -> Pose:
        return Pose.create(torch.tensor([place or self._away[name] for place in places], device=self.device))

    @property
    def _settles(self) -> bool:
        """Whether single environments can be advanced, and so come to rest before an episode begins."""
        return self.device.type == "cpu"

    def _settle(self, env_idx: torch.Tensor) -> None:
        if not self._settles:
            return
        self._advance(env_idx, _SETTLE)
        things, plates = self._of(self.things, self._thing), self._of(self.plates, self._plate)
        speed = sum(self._gather(a, "linear_velocity")[env_idx].norm() for a in (things, plates))
        turning = sum(self._gather(a, "angular_velocity")[env_idx].norm() for a in (things, plates))
        if speed > _SLOW or turning > _SLOW_TURN:
            self._advance(env_idx, _SETTLE_MORE)

    def _advance(self, env_idx: torch.Tensor, steps: int) -> None:
        """Physics steps of the environments `env_idx` alone: here of the only one there is."""
        for _ in range(steps):
            self.scene.step()

    def _after_control_step(self) -> None:
        if self.variant.layout is not Layout.MOVED or self.split == "in":
            return
        due = self._elapsed_steps == _MOVES_AFTER - 1
        if bool(due.any()):
            self._move(due.to(self.device))

    def _move(self, due: torch.Tensor) -> None:
        """Take the objects of the environments `due` to their third places."""
        if self.gpu_sim_enabled:
            self.scene._gpu_fetch_all()
        every = self.scene._reset_mask
        for row in due.nonzero().flatten().tolist():
            episode = self._episodes[row]
            only = torch.zeros_like(every)
            only[row] = True
            self.scene._reset_mask = only
            actor = self.things[episode.thing]
            height = _DROPPED_FROM["settled"][2]
            pose = standing(episode.places[2], height, episode.turn)
            actor.set_pose(Pose.create(torch.tensor([pose], device=self.device)))
            actor.set_linear_velocity(torch.zeros(1, 3, device=self.device))
            actor.set_angular_velocity(torch.zeros(1, 3, device=self.device))
        self.scene._reset_mask = every
        if self.gpu_sim_enabled:
            self.scene._gpu_apply_all()

    # ---------------------------------------------------------------------------------------------- what is so

    def _of(self, actors: dict[int, Actor], chosen: torch.Tensor) -> list[Actor]:
        """Each environment's own actor."""
        return [actors[number] for number in chosen.tolist()]

    def _gather(self, own: list[Actor], attribute: str) -> torch.Tensor:
        """[n, ...] of each environment's own actor."""
        values = {id(actor): getattr(actor, attribute) for actor in own}
        return torch.stack([values[id(actor)][row] for row, actor in enumerate(own)])

    def _raw_pose(self, own: list[Actor]) -> torch.Tensor:
        poses = {id(actor): actor.pose.raw_pose for actor in own}
        return torch.stack([poses[id(actor)][row] for row, actor in enumerate(own)])

    def _half_sizes(
        self, actors: dict[int, Actor], models: tuple[Model, ...], chosen: torch.Tensor, env_idx: torch.Tensor
    ) -> torch.Tensor:
        """float32 [b, 3]: half sizes along the world's axes of the turned boxes of the environments' own things."""
        sizes = [np.subtract(models[number].high, models[number].low) / 2 for number in chosen[env_idx].tolist()]
        half = torch.tensor(np.array(sizes), dtype=torch.float32, device=self.device)
        turned = quaternion_to_matrix(self._raw_pose(self._of(actors, chosen))[env_idx, 3:])
        return (turned.abs() * half[:, None, :]).sum(dim=-1)

    def evaluate(self) -> dict[str, torch.Tensor]:
        """bool [n] each: is_grasped (now), grasped_once, held_once (for five steps), success."""
        things, plates = self._of(self.things, self._thing), self._of(self.plates, self._plate)
        offset = self._raw_pose(things)[:, :3] - self._raw_pose(plates)[:, :3]
        near = offset[:, :2].norm(dim=1) <= self._plate_half.max(dim=1).values + _ASIDE
        above = offset[:, 2] - self._plate_half[:, 2] - self._thing_half[:, 2]
        over = near & (offset[:, 2] > 0) & (above <= _ABOVE)
        grasped = self._each_row([self.agent.is_grasping(actor) for actor in self._once(things)], things)
        pairs = [
            self.scene.get_pairwise_contact_forces(a, b) for a, b in self._once(list(zip(things, plates, strict=True)))
        ]
        pressing = self._each_row(pairs, list(zip(things, plates, strict=True))).norm(dim=1) > _FORCE
        self._count(grasped)
        return {
            "is_grasped": grasped,
            "grasped_once": self._grasped_once.clone(),
            "held_once": self._held_once.clone(),
            "success": over & pressing,
        }

    @staticmethod
    def _once(items: list[Any]) -> list[Any]:
        return list(dict.fromkeys(items))

    def _each_row(self, values: list[torch.Tensor], own: list[Any]) -> torch.Tensor:
        """[n, ...]: row r of the value that belongs to what is row r's own; `values` are those of `_once(own)`."""
        place = {item: k for k, item in enumerate(self._once(own))}
        return torch.stack([values[place[item]][row] for row, item in enumerate(own)])

    def _count(self, grasped: torch.Tensor) -> None:
        """Take a control step's grasps into account, once, however often somebody looks."""
        elapsed = self._elapsed_steps.to(self.device)
        new = (elapsed != self._counted) & (elapsed > 0)
        self._counted = torch.where(new, elapsed, self._counted)
        self._held_steps = torch.where(new, torch.where(grasped, self._held_steps + 1, 0), self._held_steps)
        self._grasped_once |= new & grasped
        self._held_once |= self._held_steps >= _HELD_STEPS

    def _get_obs_extra(self, info: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        hand = self.agent.robot.links_map["ee_gripper_link"].pose.raw_pose
        extra = {"tcp_pose": hand}
        if "state" in self.obs_mode:
            thing = self._raw_pose(self._of(self.things, self._thing))
            plate = self._raw_pose(self._of(self.plates, self._plate))
            extra |= {
                "is_grasped": info["is_grasped"],
                "object_pose": thing,
                "plate_pose": plate,
                "tcp_to_object": thing[:, :3] - hand[:, :3],
                "object_to_plate": plate[:, :3] - thing[:, :3],
            }
        return extra

    def compute_dense_reward(self, obs: Any, action: torch.Tensor, info: dict[str, torch.Tensor]) -> torch.Tensor:
        """float32 [n] in [0, 1.2]: 0.1 once grasped, 0.1 once held for five steps, 1 at success if ever grasped.

        A sum of what has been reached, as published; `reward_form: relative` pays each once.
        """
        once, held = info["grasped_once"], info["held_once"]
        return 0.1 * once + 0.1 * held + 1.0 * (info["success"] & once)

    def compute_normalized_dense_reward(
        self, obs: Any, action: torch.Tensor, info: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The dense reward in [0, 1]."""
        return self.compute_dense_reward(obs, action, info) / _MOST_REWARD

    # ---------------------------------------------------------------------------------------------- pictures

    def finish_picture(self, camera: str, row: int, picture: torch.Tensor, segmentation: torch.Tensor) -> torch.Tensor:
        """uint8 [H, W, 3]: what the policy sees of environment `row` instead of `picture`.

        segmentation: int [H, W], each pixel's entity in its scene.
        """
        if camera != CAMERA:
            return picture
        entities = [link._objs[row].entity for link in self.agent.robot.get_links()]
        entities += [actor._objs[row] for actor in (*self.things.values(), *self.plates.values())]
        numbers = torch.tensor([entity.per_scene_id for entity in entities], device=segmentation.device)
        kept = torch.isin(segmentation.to(numbers.dtype), numbers)
        episode, (height, width) = self._episodes[row], picture.shape[:2]
        photograph = self._picture(episode.table, "picture", height, width).to(picture.device)
        out = overlay.behind(picture, kept, photograph)
        mix = self.variant.strength * self.collection.tables[episode.texture].mix
        if self.variant.blend == "things":
            texture = self._picture(episode.texture, "texture", height, width)
            return overlay.on_things(out, kept, texture.to(out.device), mix)
        if self.variant.blend == "everything":
            texture = self._picture(episode.texture, "texture", 2 * height, 2 * width)
            return overlay.on_everything(out, kept, texture.to(out.device), mix)
        return out

    def _picture(self, table: int, which: str, height: int, width: int) -> torch.Tensor:
        return _loaded(getattr(self.collection.tables[table], which), height, width)


@functools.lru_cache(maxsize=64)
def _loaded(path: Any, height: int, width: int) -> torch.Tensor:
    return torch.from_numpy(read_picture(path, height, width))


def intrinsic(height: int, width: int) -> np.ndarray:
    """float [3, 3]: the camera's, for the whole of its view in a picture of another size."""
    down, across = height / PICTURE[0], width / PICTURE[1]
    return np.array([[623.588 * across, 0, 319.501 * across], [0, 623.588 * down, 239.545 * down], [0, 0, 1]])


def _thing_place(
    number: int, episode: Episode, variant: Variant, heights: tuple[float, float, float]
) -> list[float] | None:
    """Where an object begins, None if it is not used."""
    if number == episode.thing:
        return standing(episode.places[0], heights[0], episode.turn)
    if variant.second == "object" and number == episode.second:
        return standing(episode.places[2], heights[2], episode.turn)
    return None


def _plate_place(
    number: int, episode: Episode, variant: Variant, heights: tuple[float, float, float]
) -> list[float] | None:
    """Where a plate begins, None if it is not used."""
    if number == episode.plate:
        return standing(episode.places[1], heights[1], 0.0)
    if variant.second == "plate" and number == episode.second:
        return standing(episode.places[2], heights[2], 0.0)
    return None


def register() -> None:
    """Make the tasks known to ManiSkill, except for those that another package has registered."""
    for name, variant in VARIANTS.items():
        if name not in REGISTERED_ENVS:
            task = type(name.replace("-", "_"), (PutOnPlateInScene,), {"__module__": __name__, "variant": variant})
            register_env(name, max_episode_steps=STEPS)(task)
