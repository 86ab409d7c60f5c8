"""Scripted experts: functions from a task's full state to actions, for tasks that a few waypoints solve.

For the Panda under `pd_ee_delta_pose` control; those that never turn the hand also under `pd_ee_delta_pos`. They keep
no memory: what to do next follows from where things are now, so one call serves any batch, in any process. Each takes
the task's state observation, float32 [n, S], and returns actions, float32 [n, 7].
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

CONTROL_MODE = "pd_ee_delta_pose"

_FULL_MOVE = 0.1  # metres of a full translation action
_FULL_TURN = 0.1  # radians of a full rotation action
_APPROACH = 0.08  # metres above an object from where it is taken
_OPEN, _CLOSED = 1.0, -1.0
_FINGER = 7  # place of a finger joint in the state; 0.04 open
_HALF_CUBE = 0.02
_REACH = 0.035  # metres between the hand and the side of a cube it pushes


def _act(
    hand: torch.Tensor, target: torch.Tensor, gripper: torch.Tensor, turn: torch.Tensor, gain: float = 1.0
) -> torch.Tensor:
    """float32 [n, 7]: `gain` of the way to `target` [n, 3], turned by `turn` [n] radians about the vertical, `gripper`
    [n]."""
    action = torch.zeros(len(hand), 7)
    action[:, :3] = (gain * (target - hand) / _FULL_MOVE).clamp(-1, 1)
    action[:, 5] = (-turn / _FULL_TURN).clamp(-1, 1)  # ManiSkill scales rotations by their negative lower bound
    action[:, 6] = gripper
    return action


def _gain(gentle: bool) -> float:
    """Going half of what is left in each step answers a disturbance over several steps. A policy that decides several
    actions at once cannot see the disturbances among them, so sudden answers are noise to it."""
    return 0.5 if gentle else 1.0


def _up(metres: float) -> torch.Tensor:
    return torch.tensor([0.0, 0.0, metres])


def _square_turn(hand: torch.Tensor, cube: torch.Tensor) -> torch.Tensor:
    """Radians [n] about the vertical, an eighth turn at most, that set fingers square to a cube ([n, 4] each)."""
    w, x, y, z = hand.unbind(1)
    fingers = torch.atan2(1 - 2 * (x * x + z * z), 2 * (x * y - w * z))  # direction of the hand's y axis
    w, x, y, z = cube.unbind(1)
    side = torch.atan2(2 * (x * y + w * z), 1 - 2 * (y * y + z * z))  # direction of the cube's x axis
    quarter = torch.pi / 2
    return (side - fingers + quarter / 2) % quarter - quarter / 2


def _take(
    state: torch.Tensor, hand: torch.Tensor, cube: torch.Tensor, turning: bool = True, gentle: bool = False
) -> torch.Tensor:
    """Actions that bring open fingers around a cube from above, square to it if `turning`, and close them.

    How high the hand stays follows from how far aside and how far turned it is, without phases: a hand that was pushed
    away comes back along the same funnel, and need not start from above.
    """
    turn = _square_turn(hand[:, 3:], cube[:, 3:]) if turning else torch.zeros(len(state))
    away = (hand[:, :2] - cube[:, :2]).norm(dim=1)
    astray = torch.maximum((away - 0.01) / (0.06 if gentle else 0.03), (turn.abs() - 0.1) / 0.2).clamp(0, 1)
    target = cube[:, :3] + astray[:, None] * _up(_APPROACH)
    around = (away < 0.0175) & (turn.abs() < 0.15) & ((hand[:, 2] - cube[:, 2]).abs() < 0.014)
    target = torch.where(around[:, None], hand[:, :3], target)
    gripper = torch.where(around, _CLOSED, _OPEN)
    return _act(hand[:, :3], target, gripper, torch.where(around, 0.0, turn), _gain(gentle))


def pick_cube(state: torch.Tensor, turning: bool = True, gentle: bool = False) -> torch.Tensor:
    """PickCube-v1: take the cube, bring it to the goal and hold it there.

    Open fingers pass over a cube in any turn, and turn it square when they close, so the hand need not.
    """
    grasped, hand, goal, cube = state[:, 18] > 0.5, state[:, 19:26], state[:, 26:29], state[:, 29:36]
    none = torch.zeros(len(state))
    carry = _act(hand[:, :3], hand[:, :3] + goal - cube[:, :3], torch.tensor(_CLOSED), none, _gain(gentle))
    return torch.where(grasped[:, None], carry, _take(state, hand, cube, turning, gentle))


def stack_cube(state: torch.Tensor) -> torch.Tensor:
    """StackCube-v1: take cube A, lift it, bring it over cube B, press it down and let go; take it anew if it falls."""
    hand, cube, base = state[:, 18:25], state[:, 25:32], state[:, 32:39]
    offset = cube[:, :3] - base[:, :3]
    away, above = offset[:, :2].norm(dim=1), offset[:, 2] - 2 * _HALF_CUBE
    held = ((hand[:, :3] - cube[:, :3]).norm(dim=1) < 0.035) & (state[:, _FINGER] < 0.025)
    stacked = (away < 0.018) & (above.abs() < 0.005)
    none = torch.zeros(len(state))
    # high while it is aside, and aside until it is high; over the other cube it is pressed onto it
    aside = ((away - 0.008) / 0.03).clamp(0, 1)
    height = 2 * _HALF_CUBE - 0.006 + 0.05 * aside
    free = torch.where(away < 2.5 * _HALF_CUBE, 1.0, ((above - 0.005) / 0.02).clamp(0, 1))
    aim = torch.cat([cube[:, :2] - free[:, None] * offset[:, :2], (base[:, 2] + height)[:, None]], dim=1)
    carry = _act(hand[:, :3], hand[:, :3] + aim - cube[:, :3], torch.tensor(_CLOSED), none)
    rise = torch.where(state[:, _FINGER] < 0.035, 0.0, 0.05)  # the fingers open first
    up = torch.cat([cube[:, :2], (hand[:, 2] + rise)[:, None]], dim=1)
    leave = _act(hand[:, :3], up, torch.tensor(_OPEN), none)
    action = torch.where(held[:, None], carry, _take(state, hand, cube))
    return torch.where(stacked[:, None], leave, action)


def _shove(state: torch.Tensor, direction: float) -> torch.Tensor:
    """Get closed fingers to the cube's side that faces away from `direction` (of x), then move the cube along it.

    Where the hand aims at changes steadily with where it is, without phases: what is to be cloned from few
    demonstrations should have no jumps.
    """
    hand, goal, cube = state[:, 18:21], state[:, 25:28], state[:, 28:31]
    ahead = (cube[:, 0] - hand[:, 0]) * direction  # metres that the cube is ahead of the hand
    aside, above = (hand[:, 1] - cube[:, 1]).abs(), (hand[:, 2] - _HALF_CUBE).clamp(min=0)
    ready = (1 - torch.maximum(aside / 0.03, above / 0.04)).clamp(0, 1) * (ahead > _HALF_CUBE)
    clear = ((ahead - _HALF_CUBE) / 0.03).clamp(0, 1)  # 0: go down no further, the cube may be below
    start = cube[:, 0] - direction * (_HALF_CUBE + 1.5 * _REACH)
    end = goal[:, 0] - direction * _REACH
    height = _HALF_CUBE + 0.08 * (1 - clear)
    target = torch.stack([start + ready * (end - start), cube[:, 1], height], dim=1)
    return _act(hand, target, torch.tensor(_CLOSED), torch.zeros(len(state)))


def push_cube(state: torch.Tensor) -> torch.Tensor:
    """PushCube-v1: push the cube away from the robot into the target."""
    return _shove(state, 1.0)


def pull_cube(state: torch.Tensor) -> torch.Tensor:
    """PullCube-v1: reach behind the cube and pull it to the target near the robot."""
    return _shove(state, -1.0)


def put_on_plate(state: torch.Tensor, turning: bool = True, gentle: bool = False) -> torch.Tensor:
    """PutOnPlate-v1: take the object, lift it, bring it over the plate, lower it, let go and leave."""
    hand, grasped, thing = state[:, 18:25], state[:, 25] > 0.5, state[:, 26:33]
    surface, rest = thing[:, :3] + state[:, 43:46], state[:, 46]
    offset = thing[:, :3] - surface
    away = offset[:, :2].norm(dim=1)
    placed = (away < 0.03) & (offset[:, 2] < rest + 0.005)
    # high while it is aside, and aside until it is high; all of it changes steadily with where the object is
    high = ((offset[:, 2] - rest - 0.01) / 0.04).clamp(0, 1)
    height = rest + 0.08 * ((away - 0.01) / 0.03).clamp(0, 1)
    free = torch.where(away < 0.04, 1.0, high)
    aim = torch.cat([thing[:, :2] - free[:, None] * offset[:, :2], (surface[:, 2] + height)[:, None]], dim=1)
    none = torch.zeros(len(state))
    carry = _act(hand[:, :3], hand[:, :3] + aim - thing[:, :3], torch.tensor(_CLOSED), none, _gain(gentle))
    rise = torch.where(state[:, _FINGER] < 0.035, 0.0, 0.06)  # the fingers open first
    leave = _act(hand[:, :3], hand[:, :3] + rise[:, None] * _up(1.0), torch.tensor(_OPEN), none)
    action = torch.where(grasped[:, None], carry, _take(state, hand, thing, turning, gentle))
    return torch.where(placed[:, None], leave, action)


EXPERTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "PickCube-v1": pick_cube,
    "StackCube-v1": stack_cube,
    "PushCube-v1": push_cube,
    "PullCube-v1": pull_cube,
    "PutOnPlate-v1": put_on_plate,
}

TURNING = frozenset({"StackCube-v1"})
"""Tasks whose experts turn the hand, and so need control of its rotation."""

STRAIGHT = {
    "PickCube-v1": functools.partial(pick_cube, turning=False, gentle=True),
    "PutOnPlate-v1": functools.partial(put_on_plate, turning=False, gentle=True),
}
"""Experts for `without_turns` that do without turning what they would do better with it."""

_TRANSLATION_AND_GRIPPER = [0, 1, 2, 6]


def without_turns(expert: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """`expert` for `pd_ee_delta_pos` control: actions, float32 [n, 4], without the three rotations."""
    return lambda state: expert(state)[:, _TRANSLATION_AND_GRIPPER]
