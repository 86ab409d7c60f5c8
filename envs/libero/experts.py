"""Scripted pick-and-place from privileged state, for demonstrations and for comparing simulator modes.

Proportional control of the hand's position with the wrist kept as it is. The script keeps no memory: what to do next
follows from where things are and what the fingers do, and changes steadily with it, so that a policy which sees one
picture can learn it and a lost object is taken anew. It solves the tasks of `SKILLS` and refuses the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import mujoco
import numpy as np

from embodied.errors import ConfigurationError
from envs.libero.batch import LiberoBatch
from envs.libero.task import Task

_GAIN = 20.0  # action per metre of error; an action of 1 asks for 5 cm
_OPEN, _CLOSE = -1.0, 1.0
_FUNNEL_HEIGHT = 0.12  # metres above the grasp, outside the funnel
_GLIDE = 0.1  # metres from the target where a carried object begins to come down
_ON_TARGET = 0.02  # metres aside where it is let go
_BEGUN = 0.85  # of their way, where fingers have begun to close
_APART = 0.06  # metres above the grasp where closed fingers open again
_STILL = 0.02  # metres a second of fingers that have closed on something


@dataclasses.dataclass(frozen=True)
class Skill:
    """How an object is taken and put down; metres, in the world's frame.

    grasp: from the object's origin to where the hand closes. release: height of the object's origin above the target's
    when the hand opens. clearance: how much higher than that it is carried. funnel: how far aside of the grasp the hand
    comes down to it; little for tall things.
    """

    grasp: tuple[float, float, float]
    release: float
    clearance: float
    funnel: float = 0.09


_BY_THE_RIM = (0.0, 0.045, 0.03)

_BOWL_ONTO = Skill(grasp=_BY_THE_RIM, release=0.04, clearance=0.08)
_BOWL_UP_ONTO = Skill(grasp=_BY_THE_RIM, release=0.06, clearance=0.08)
_INTO_BASKET = Skill(grasp=(0.0, 0.0, 0.0), release=0.18, clearance=0.05, funnel=0.03)
_INTO_BOWL = Skill(grasp=(0.0, 0.0, 0.0), release=0.1, clearance=0.05)

SKILLS: dict[tuple[str, str], Skill] = {
    ("akita_black_bowl", "plate"): _BOWL_ONTO,
    ("akita_black_bowl", "flat_stove"): _BOWL_ONTO,
    ("akita_black_bowl", "wooden_cabinet_1_top_side"): _BOWL_UP_ONTO,
    ("cream_cheese", "akita_black_bowl"): _INTO_BOWL,
    **{
        (thing, "basket"): _INTO_BASKET
        for thing in (
            "alphabet_soup",
            "bbq_sauce",
            "butter",
            "chocolate_pudding",
            "cream_cheese",
            "ketchup",
            "milk",
            "orange_juice",
            "salad_dressing",
            "tomato_sauce",
        )
    },
}
"""(kind of object, beginning of the target's name) -> how, for goals of the form On or In with a single object."""


_BEYOND = ("in_the_top_drawer", "on_the_ramekin")
"""Parts of names of tasks whose goal has a skill but whose start does not suit it."""


class Expert:
    """The scripted policy of one environment's episode. Raises ConfigurationError for a task it cannot do."""

    def __init__(self, batch: LiberoBatch, row: int) -> None:
        self._batch = batch
        self._row = row
        task = batch.task_of(row)
        self._object, target, self._skill = _plan(task)
        self._target = _locate(task, target)
        arm, model = task.controller.arm, task.scene.model
        joints = [int(np.flatnonzero(model.jnt_qposadr == address)[0]) for address in arm.finger_qpos]
        self._hand, self._fingers, self._speeds = arm.site, arm.finger_qpos, model.jnt_dofadr[joints]
        self._palm = model.geom_bodyid == model.body_parentid[model.jnt_bodyid[joints[0]]]
        self._opened = float(np.abs(model.jnt_range[joints]).max())

    def act(self) -> np.ndarray:
        """float32 [7]: the next action, given the environment's current state."""
        data, skill = self._batch.data_of(self._row), self._skill
        hand, thing = data.site_xpos[self._hand], data.xpos[self._object]
        offset = thing - self._target(data)
        fingers = np.abs(data.qpos[self._fingers]).mean() / self._opened
        speed = float((data.qvel[self._speeds] * np.sign(data.qpos[self._fingers])).mean())  # of opening
        closing = fingers < _BEGUN and speed < _STILL
        grasp = thing + skill.grasp
        aside = float(np.linalg.norm(hand[:2] - grasp[:2]))
        stands = bool(self._palm[data.contact.geom].any())  # on something between its fingers or beside them
        low = stands or abs(hand[2] - grasp[2]) < (0.05 if closing else 0.012)
        around = low and aside < (0.04 if closing else 0.025 if stands else 0.015)
        if np.linalg.norm(offset[:2]) < _ON_TARGET and offset[2] < skill.release + 0.01:
            goal, gripper = _raised(hand, 0.1 if fingers > _BEGUN else 0.0), _OPEN
        elif around and closing and abs(speed) < _STILL:
            goal, gripper = hand + self._carry(offset), _CLOSE
        elif around:  # closing fingers push the object along y: what they do not decide is mended meanwhile
            goal, gripper = np.array([grasp[0], hand[1], grasp[2]]), _CLOSE
        else:
            height = _FUNNEL_HEIGHT * np.clip((aside - 0.01) / skill.funnel, 0, 1)
            goal, gripper = _raised(grasp, height if fingers > _BEGUN else max(height, _APART)), _OPEN
        action = np.zeros(7, dtype=np.float32)
        action[:3] = np.clip((goal - hand) * _GAIN, -1.0, 1.0)
        action[6] = gripper
        return action

    def _carry(self, offset: np.ndarray) -> np.ndarray:
        """How to move an object that is `offset` from its target: up, over, and down while it comes near."""
        skill = self._skill
        away = np.linalg.norm(offset[:2])
        height = skill.release + skill.clearance * np.clip((away - 0.01) / _GLIDE, 0, 1)
        free = np.clip((offset[2] - height + 0.05) / 0.04, 0, 1)  # not aside until it is up
        return np.array([*(-free * offset[:2]), height - offset[2]])


def _raised(point: np.ndarray, height: float) -> np.ndarray:
    return point + np.array([0.0, 0.0, height])


def can_solve(task: Task) -> bool:
    """Whether there is a skill for the task's goal."""
    return _skill_for(task) is not None


def _skill_for(task: Task) -> tuple[str, str, Skill] | None:
    """(object, target, skill) of the task's goal."""
    if len(task.goal) != 1 or task.goal[0][0] not in ("on", "in") or any(part in task.files.name for part in _BEYOND):
        return None
    _, thing, target = task.goal[0]
    for (kind, place), skill in SKILLS.items():
        if thing.rsplit("_", 1)[0] == kind and target.startswith(place):
            return thing, target, skill
    return None


def _plan(task: Task) -> tuple[int, str, Skill]:
    found = _skill_for(task)
    if found is None:
        goal = " and ".join(f"({' '.join(state)})" for state in task.goal)
        places = ", ".join(f"{kind} to {place}" for kind, place in SKILLS)
        raise ConfigurationError(f"There is no scripted policy for {task.files.name}, {goal}. There are: {places}.")
    thing, target, skill = found
    return task.objects[thing], target, skill


def _locate(task: Task, target: str) -> Callable[[mujoco.MjData], np.ndarray]:
    """The position of the goal's target: an object's, or that of one of its sites."""
    if target in task.objects:
        body = task.objects[target]
        return lambda data: data.xpos[body]
    site = int(task.scene.model.site(target).id)
    return lambda data: data.site_xpos[site]
