"""The first rules of the conformance suite: what an environment says it is, and shapes and types of what it shows."""

from __future__ import annotations

import logging

import torch

from embodied.errors import SimulatorError
from envs.api import Bounds, EnvSpec, Observation, VectorEnv
from envs.conformance_runs import CHUNK, make_script, require, run

logger = logging.getLogger(__name__)


def check_spec(env: VectorEnv) -> None:
    spec, rule = env.spec, "spec"
    action = spec.action
    if action.kind is Bounds.DISCRETE:
        require(action.dim == 1 and action.choices > 0, rule, f"a discrete action has dim 1 and choices, not {action}.")
    else:
        fits = len(action.low) == len(action.high) == action.dim > 0
        require(fits, rule, f"low and high must have dim={action.dim} numbers.")
        ordered = all(low < high for low, high in zip(action.low, action.high, strict=True))
        require(ordered, rule, "every low must be below its high.")
    sizes = {(camera.height, camera.width) for camera in spec.cameras}
    require(len(sizes) <= 1, rule, f"all cameras must share one size, not {sorted(sizes)}.")
    require(spec.state_dim > 0 or bool(spec.cameras), rule, "there is neither state nor camera to see anything by.")
    require(len(spec.instructions) > 0, rule, "instructions must not be empty; use ('',) where there are none.")
    counts = len(spec.initial_states) == spec.tasks >= 1
    require(counts, rule, f"initial_states must have one number for each of {spec.tasks} tasks.")


def _check_observation(spec: EnvSpec, observation: Observation, rows: int, where: str) -> None:
    rule = "shapes_and_dtypes"
    expected: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "state": (torch.float32, (rows, spec.state_dim)),
        "instruction_ids": (torch.int64, (rows,)),
    }
    if spec.cameras:
        camera = spec.cameras[0]
        expected["images"] = (torch.uint8, (rows, len(spec.cameras), camera.height, camera.width, 3))
    if spec.privileged_dim:
        expected["privileged"] = (torch.float32, (rows, spec.privileged_dim))
    for name in ("state", "instruction_ids", "images", "privileged"):
        value = getattr(observation, name)
        if name not in expected:
            require(value is None, rule, f"{where}: {name} must be None, since the spec has none.")
            continue
        dtype, shape = expected[name]
        came = "None" if value is None else f"{value.dtype} {list(value.shape)}"
        good = value is not None and value.dtype is dtype and tuple(value.shape) == shape
        require(good, rule, f"{where}: {name} must be {dtype} {list(shape)}, but is {came}.")
    ids = observation.instruction_ids.tolist()
    require(all(0 <= i < len(spec.instructions) for i in ids), rule, f"{where}: instruction_ids {ids} out of range.")
    texts = [spec.instructions[i] for i in ids]
    require(observation.instruction == texts, rule, f"{where}: instruction must be the texts of instruction_ids.")


def check_shapes(env: VectorEnv) -> None:
    script = make_script(env, "shapes", chunks=2)
    _check_observation(env.spec, env.reset(script.assignments), env.num_envs, "reset")
    size = env.slot_size
    kinds = {
        "reward": (torch.float32, (size, CHUNK)),
        **dict.fromkeys(("terminated", "truncated", "success", "valid"), (torch.bool, (size, CHUNK))),
        "ended": (torch.bool, (size,)),
        "failed": (torch.bool, (size,)),
    }
    for result in (r for results in run(env, script) for r in results):
        _check_observation(env.spec, result.observation, size, "recv")
        for name, (dtype, shape) in kinds.items():
            value = getattr(result, name)
            good = value.dtype is dtype and tuple(value.shape) == shape
            came = f"{value.dtype} {list(value.shape)}"
            require(good, "shapes_and_dtypes", f"recv: {name} must be {dtype} {list(shape)}, but is {came}.")
        if result.final_observation is not None:
            _check_observation(env.spec, result.final_observation, len(result.final_rows), "final_observation")


def check_render(env: VectorEnv) -> None:
    """Pictures for people; an environment may have none, and says so."""
    env.reset(make_script(env, "render", chunks=1).assignments)
    rows = [0, env.num_envs - 1]
    try:
        pictures = env.render(rows)
    except SimulatorError as error:
        logger.info("%s: not rendered: %s", env.spec.id, error)
        return
    good = isinstance(pictures, torch.Tensor) and pictures.dtype is torch.uint8 and pictures.dim() == 4
    came = f"{pictures.dtype} {list(pictures.shape)}" if isinstance(pictures, torch.Tensor) else type(pictures).__name__
    require(
        good and pictures.shape[0] == len(rows) and pictures.shape[3] == 3,
        "render",
        f"render must give uint8 [{len(rows)}, H, W, 3], but gave {came}.",
    )
