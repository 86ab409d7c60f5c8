"""Scripted experts by environment, and simulators that say what their expert would do next.

An `ExpertBatch` is a simulator whose observations carry its expert's advice as the last part of `privileged`. So
experts run beside their simulators, in whatever process those are, even where they look deep into the physics.
Packages add experts by an entry point of the group `embodied.experts` whose name is the environment's prefix.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
from typing import Any, Protocol

import torch

from embodied.config import parse
from embodied.errors import ConfigurationError, suggest
from envs import registry
from envs.api import Assignments, EnvConfig, EnvSpec, Observation, VectorEnv
from envs.batch import BatchEnv, BatchStep

ENTRY_POINT_GROUP = "embodied.experts"


class Expert(Protocol):
    """The scripted policy of the environments of one `BatchEnv`."""

    def begin(self, rows: torch.Tensor) -> None:
        """New episodes have started in `rows` int64 [R]."""

    def advance(self, active: torch.Tensor) -> None:
        """The environments `active` bool [n] have made a step."""

    def advise(self, observation: Observation, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [R, A]: what to do next in `rows`, which show `observation`; bool [R]: whether it knows the task."""


@dataclasses.dataclass(frozen=True)
class ExpertKind:
    """Experts for the environments of one prefix.

    make: "module:attribute" of `(config, batch) -> Expert`. settings: options of the environment the experts need.
    alternatives: other values of these options that they can work with.
    disturbed: action dimensions that noise may be put on without spoiling the task (translations, as a rule).
    check: "module:attribute" of `(config)`, which raises ConfigurationError for what has no expert; "": known later.
    """

    make: str
    settings: dict[str, Any]
    disturbed: tuple[int, ...]
    alternatives: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    check: str = ""


_KINDS = {
    "maniskill": ExpertKind(
        "embodied.interaction.experts:maniskill_expert",
        {"control_mode": "pd_ee_delta_pose"},
        (0, 1, 2),
        {"control_mode": ("pd_ee_delta_pos",)},
        "embodied.interaction.experts:maniskill_script",
    ),
    "libero": ExpertKind("embodied.interaction.experts:libero_expert", {}, (0, 1, 2)),
}


def expert_kind(env_id: str) -> ExpertKind:
    """The experts for an environment. Raises ConfigurationError where there are none."""
    prefix = env_id.partition("/")[0]
    if prefix in _KINDS:
        return _KINDS[prefix]
    provided = {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
    if prefix in provided:
        return provided[prefix].load()
    known = sorted(f"{name}/..." for name in {*_KINDS, *provided})
    raise ConfigurationError(f"There is no scripted expert for {env_id!r}. " + suggest(env_id, known, noun="prefixes"))


def expert_config(values: dict[str, Any]) -> EnvConfig:
    """The environment that `values` describe, with the options its expert needs.

    Raises ConfigurationError for values that the expert cannot work with, and where it is known that there is none.
    """
    kind = expert_kind(values["id"])
    needed = kind.settings | {"auto_reset": "disabled", "slots": 1, "ignore_terminations": False}
    for name, value in needed.items():
        if values.get(name, value) not in (value, *kind.alternatives.get(name, ())):
            raise ConfigurationError(
                f"env.{name} is {values[name]!r}, but the scripted expert of {values['id']} needs {value!r}; leave it "
                "out."
            )
    config = parse(registry.config_class(values["id"]), needed | values, at="env")
    if kind.check:
        _load(kind.check)(config)
    return config


def make_expert_env(config: EnvConfig) -> VectorEnv:
    """The environments of `config`, in processes as it says, each with its expert beside it."""
    return registry.make(config, around=with_expert)


def with_expert(config: EnvConfig, batch: BatchEnv) -> BatchEnv:
    """`batch` with the expert for its environments. Raises ConfigurationError where there is none."""
    return ExpertBatch(batch, _load(expert_kind(config.id).make)(config, batch))


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


class ExpertBatch(BatchEnv):
    """`batch` with A + 1 more numbers at the end of `privileged`: its expert's action, and 1 if it knows the task."""

    def __init__(self, batch: BatchEnv, expert: Expert) -> None:
        self._batch, self._expert = batch, expert
        self.num_envs, self.device = batch.num_envs, batch.device
        spec = batch.spec
        self.spec = dataclasses.replace(spec, privileged_dim=spec.privileged_dim + spec.action.dim + 1)

    def reset(self, rows: torch.Tensor, assignments: Assignments) -> None:
        self._batch.reset(rows, assignments)
        self._expert.begin(rows)

    def step(self, actions: torch.Tensor, active: torch.Tensor) -> BatchStep:
        result = self._batch.step(actions, active)
        self._expert.advance(active)
        return result

    def observe(self, rows: torch.Tensor | None = None) -> Observation:
        observation = self._batch.observe(rows)
        rows = torch.arange(self.num_envs) if rows is None else rows
        actions, able = self._expert.advise(observation, rows)
        advice = torch.cat([actions, able[:, None].float()], dim=1).to(observation.state.device)
        own = observation.privileged if observation.privileged is not None else advice[:, :0]
        return dataclasses.replace(observation, privileged=torch.cat([own, advice], dim=1))

    def render(self, rows: torch.Tensor) -> torch.Tensor:
        return self._batch.render(rows)

    def close(self) -> None:
        self._batch.close()


def plain_spec(spec: EnvSpec) -> EnvSpec:
    """The spec of the simulator inside an `ExpertBatch`."""
    return dataclasses.replace(spec, privileged_dim=spec.privileged_dim - spec.action.dim - 1)


def split_advice(observation: Observation, spec: EnvSpec) -> tuple[Observation, torch.Tensor, torch.Tensor]:
    """The observation as the simulator inside shows it, the expert's action float32 [B, A], whether it knows the task
    bool [B]. spec: the plain one."""
    privileged = observation.privileged.cpu()
    own = privileged[:, : spec.privileged_dim] if spec.privileged_dim else None
    advice = privileged[:, spec.privileged_dim :]
    return dataclasses.replace(observation, privileged=own), advice[:, :-1], advice[:, -1] > 0.5


# -- the experts that ship ------------------------------------------------------------------------------------------


class StateExpert:
    """An expert that is a function of the full state."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def begin(self, rows: torch.Tensor) -> None:
        """Nothing to remember."""

    def advance(self, active: torch.Tensor) -> None:
        """Nothing to remember."""

    def advise(self, observation: Observation, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        full = observation.state if observation.privileged is None else observation.privileged
        return self._function(full.cpu()), torch.ones(len(rows), dtype=torch.bool)


def maniskill_expert(config: Any, batch: BatchEnv) -> Expert:
    """See `envs.maniskill.experts`. Raises ConfigurationError for a task or a control mode without an expert."""
    return StateExpert(maniskill_script(config))


def maniskill_script(config: Any) -> Any:
    """The function of `envs.maniskill.experts` for a configuration; as `maniskill_expert`, without a simulator."""
    from envs.maniskill.experts import EXPERTS, STRAIGHT, TURNING, without_turns

    if config.task not in EXPERTS:
        raise ConfigurationError(
            f"There is no scripted expert for {config.id}. " + suggest(config.task, sorted(EXPERTS), noun="tasks")
        )
    expert = EXPERTS[config.task]
    if config.control_mode == "pd_ee_delta_pos":
        if config.task in TURNING:
            raise ConfigurationError(
                f"The scripted expert of {config.id} turns the hand, which env.control_mode=pd_ee_delta_pos cannot; "
                "leave env.control_mode out."
            )
        expert = without_turns(STRAIGHT.get(config.task, expert))
    return expert


class _LiberoExpert:
    """One script an environment, where there is one for its task."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._scripts: dict[int, Any] = {}

    def begin(self, rows: torch.Tensor) -> None:
        from envs.libero.experts import Expert as Script
        from envs.libero.experts import can_solve

        for row in rows.tolist():
            self._scripts.pop(row, None)
            if can_solve(self._batch.task_of(row)):
                self._scripts[row] = Script(self._batch, row)

    def advance(self, active: torch.Tensor) -> None:
        """Nothing to remember."""

    def advise(self, observation: Observation, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        actions = torch.zeros(len(rows), self._batch.spec.action.dim)
        for place, row in enumerate(rows.tolist()):
            if row in self._scripts:
                actions[place] = torch.from_numpy(self._scripts[row].act())
        return actions, torch.tensor([row in self._scripts for row in rows.tolist()])


def libero_expert(config: Any, batch: BatchEnv) -> Expert:
    """See `envs.libero.experts`."""
    return _LiberoExpert(batch)
