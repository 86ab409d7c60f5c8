"""Scripted pick-and-place from privileged state, for demonstrations and for comparing simulator modes.

Proportional control of the hand's position with the wrist kept as it is: above the object, down, close, lift, over the
target, down, open. It solves the tasks of `SKILLS` and refuses the others.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import mujoco
import numpy as np

from embodied.errors import ConfigurationError
from envs.libero.batch import LiberoBatch
from envs.libero.task import Task

_GAIN = 20.0  # action per metre of error; an action of 1 asks for 5 cm
_OPEN, _CLOSE = -1.0, 1.0
_GLIDE = 0.1  # metres from the target where what is carried begins to come down: a policy that sees one picture cannot
#               tell a hand that is to stop and go down from one that has yet to arrive


@dataclasses.dataclass(frozen=True)
class Skill:
    """How an object is taken and put down; metres, in the world's frame.

    grasp: from the object's origin to where the hand closes. lift: how far up before moving. release: height of the
    object's origin above the target's when the hand opens.
    """

    grasp: tuple[float, float, float]
    lift: float
    release: float


_BY_THE_RIM = (0.0, 0.045, 0.03)

_BOWL_ONTO = Skill(grasp=_BY_THE_RIM, lift=0.15, release=0.04)
_BOWL_UP_ONTO = Skill(grasp=_BY_THE_RIM, lift=0.35, release=0.06)
_INTO_BASKET = Skill(grasp=(0.0, 0.0, 0.0), lift=0.25, release=0.18)
_INTO_BOWL = Skill(grasp=(0.0, 0.0, 0.0), lift=0.2, release=0.1)

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


class Phase(enum.Enum):
    """What the hand is doing."""

    ABOVE = enum.auto()
    DOWN = enum.auto()
    CLOSE = enum.auto()
    LIFT = enum.auto()
    OVER = enum.auto()
    LOWER = enum.auto()
    OPEN = enum.auto()
    AWAY = enum.auto()


_NEXT = dict(zip(list(Phase)[:-1], list(Phase)[1:], strict=True))
_PATIENCE = {Phase.DOWN: 25, Phase.CLOSE: 12, Phase.LIFT: 40, Phase.OVER: 80, Phase.LOWER: 30, Phase.OPEN: 10}


class Expert:
    """The scripted policy of one environment, from the reset on. Raises ConfigurationError for a task it cannot do."""

    def __init__(self, batch: LiberoBatch, row: int) -> None:
        self._batch = batch
        self._row = row
        task = batch.task_of(row)
        self._object, target, self._skill = _plan(task)
        self._target = _locate(task, target)
        self._hand = task.controller.arm.site
        self._phase = Phase.ABOVE
        self._steps = 0
        self._held = np.zeros(3)  # where the hand was when the phase began

    @property
    def phase(self) -> Phase:
        """What it is doing now."""
        return self._phase

    def act(self) -> np.ndarray:
        """float32 [7]: the next action, given the environment's current state."""
        data = self._batch.data_of(self._row)
        hand = data.site_xpos[self._hand].copy()
        thing = data.xpos[self._object].copy()
        goal, done = self._goal(hand, thing, self._target(data).copy())
        closed = Phase.CLOSE.value <= self._phase.value <= Phase.LOWER.value
        action = np.zeros(7, dtype=np.float32)
        action[:3] = np.clip((goal - hand) * _GAIN, -1.0, 1.0)
        action[6] = _CLOSE if closed else _OPEN
        self._steps += 1
        if self._phase in _NEXT and (done or self._steps >= _PATIENCE.get(self._phase, np.inf)):
            self._phase = _NEXT[self._phase]
            self._steps = 0
            self._held = hand
        return action

    def _goal(self, hand: np.ndarray, thing: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, bool]:
        """Where the hand should be, and whether the phase has reached its end."""
        skill, held = self._skill, self._held
        grasp = thing + skill.grasp
        carried = hand - thing
        match self._phase:
            case Phase.ABOVE:
                high = max(hand[2], thing[2] + 0.12)
                far = np.abs(hand[:2] - grasp[:2]).max() > 0.03
                goal = np.array([grasp[0], grasp[1], high if far else grasp[2] + 0.04])
                return goal, not far and bool(np.abs(goal - hand).max() < 0.012)
            case Phase.DOWN:
                return grasp, bool(np.abs(grasp - hand).max() < 0.008)
            case Phase.CLOSE | Phase.OPEN:
                return held, False
            case Phase.LIFT:
                goal = _raised(held, skill.lift)
                return goal, bool(abs(goal[2] - hand[2]) < 0.02)
            case Phase.OVER:
                goal = _raised(target + carried, skill.release)
                aside = np.linalg.norm((goal - hand)[:2])
                goal[2] += np.clip((aside - 0.02) / _GLIDE, 0, 1) * max(held[2] - goal[2], 0)
                return goal, bool(np.abs(goal - hand)[:2].max() < 0.01)
            case Phase.LOWER:
                goal = _raised(target + carried, skill.release)
                return goal, bool(abs(goal[2] - hand[2]) < 0.01)
            case Phase.AWAY:
                return _raised(held, 0.1), False


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
