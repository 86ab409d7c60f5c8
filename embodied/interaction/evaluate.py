"""Evaluating a saved policy: each (task, initial state, seed) exactly once, with everything needed to repeat it."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from embodied.errors import AssetError
from embodied.interaction.assignments import evaluation_assignments
from embodied.interaction.env_worker import EnvWorker, EnvWorkerOptions
from embodied.interaction.evaluation import EvaluationResult
from embodied.interaction.messages import Rollout
from embodied.interaction.policy_worker import PolicyWorker, PolicyWorkerOptions
from embodied.interaction.recipe import EvaluationConfig
from embodied.runs.checkpoint import CheckpointStore
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import wilson_interval
from embodied.scheduler import ACCELERATOR, CPU, Flow, Route
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.plan import single_device_plan
from envs import registry as env_registry
from envs.api import EnvConfig, EnvSpec
from policies import registry as policy_registry
from policies.description import read_description
from policies.registry import DESCRIPTION
from policies.vla.prompt import prompts_of
from sim_assets.trained import bundled_checkpoint, bundled_checkpoints


def find_policy(path: str | Path) -> Path:
    """The policy folder meant by a policy, checkpoint or run folder (its latest checkpoint), or by the name of a
    checkpoint that ships.

    Raises AssetError when there is none.
    """
    bundled = bundled_checkpoint(str(path))
    path = Path(path).expanduser()
    if bundled is not None and not path.is_dir():
        return bundled
    if not path.is_dir():
        raise AssetError(
            f"there is no folder {path}; give a run folder, one of its checkpoints, a saved policy, or the name of one "
            f"that ships: {', '.join(bundled_checkpoints())}"
        )
    latest = CheckpointStore(path / "checkpoints", keep=1).latest()
    candidates = [path, path / "policy", *([latest.folder / "policy"] if latest else [])]
    for candidate in candidates:
        if (candidate / DESCRIPTION).is_file():
            return candidate.resolve()
    raise AssetError(f"{path} holds no policy: neither {DESCRIPTION} nor a complete checkpoint is in it")


def find_run(path: str | Path) -> Path | None:
    """The run folder that `path` lies in, if it lies in one; other programs have files called config.yaml too."""
    resolved = Path(path).expanduser().resolve()
    if not resolved.exists():
        return None  # the name of a policy that ships
    return next((p for p in (resolved, *resolved.parents) if _is_run(RunFolder(p))), None)


def _is_run(folder: RunFolder) -> bool:
    return folder.config.is_file() and folder.metrics.is_file()


def require_fit(policy: Path, env: EnvConfig) -> EnvSpec | None:
    """Raise ConfigurationError where the policy saved in `policy` does not fit `env`, as far as that can be told before
    a simulator starts; returns what is known of `env` then."""
    spec = env_registry.describe_at_once(env)
    if spec is not None:
        policy_registry.check_saved(policy, policy_registry.interface_of(spec))
    return spec


def evaluate_policy(
    policy: Path,
    env: EnvConfig,
    options: EvaluationConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    forward_rows: int | None = 16,
    deadline: float = 600.0,
) -> tuple[EvaluationResult, EnvSpec]:
    """Play the evaluation episodes of `env` with the policy saved in `policy`. Raises EmbodiedError."""
    require_fit(policy, env)
    flow = Flow("evaluation")
    env_stage = flow.stage("env", EnvWorker, EnvWorkerOptions(env), scales_with="environments", needs=CPU)
    policy_options = PolicyWorkerOptions(policy, forward_rows)
    policy_stage = flow.stage("policy", PolicyWorker, policy_options, scales_with="observations", needs=ACCELERATOR)
    flow.edge(env_stage.questions, policy_stage.questions)
    flow.edge(policy_stage.decisions, env_stage.decisions, route=Route.OWNER)
    plan = single_device_plan(flow, device, env.slots)

    async def main() -> tuple[EvaluationResult, EnvSpec]:
        async with InlineLauncher(flow, plan, seed=seed, deadline=deadline) as system:
            spec = system.announced["env"]
            assignments = evaluation_assignments(options.seed, options.episodes, spec)
            rollout = Rollout(0, 0, "evaluate", options.sampling)
            episodes, _ = await system.together(
                system.group("env").call("evaluate", assignments),
                system.group("policy").call("act", rollout),
            )
            return EvaluationResult(tuple(episode for part in episodes for episode in part)), spec

    return asyncio.run(main())


def results_record(
    result: EvaluationResult,
    spec: EnvSpec,
    *,
    policy: Path,
    env: EnvConfig,
    options: EvaluationConfig,
    versions: dict[str, str],
    device: str,
) -> dict[str, Any]:
    """results.json: protocol, device, versions, hashes, counts per task, every episode; no films."""
    per_task: dict[int, list[bool]] = collections.defaultdict(list)
    for episode in result.episodes:
        per_task[episode.task].append(episode.success_once)
    # instructions belong to tasks one to one, or vary within a task and are then told by films alone
    named = dict(enumerate(spec.instructions)) if len(spec.instructions) == spec.tasks else {}
    return {
        "policy": {"folder": str(policy), "sha256": weight_hashes(policy)},
        "environment": dataclasses.asdict(env),
        "protocol": dataclasses.asdict(options),
        "device": _named(device),
        "versions": {**versions, **spec.versions},
        "metrics": result.metrics(spec.has_success),
        "tasks_named": {str(task): text for task, text in named.items() if text},
        "prompts": prompts_of(read_description(policy)["options"], spec.instructions),
        "tasks": [
            {
                "task": task,
                "instruction": named.get(task, ""),
                "episodes": len(outcomes),
                "successes": sum(outcomes),
                "interval": wilson_interval(sum(outcomes), len(outcomes)),
            }
            for task, outcomes in sorted(per_task.items())
        ],
        "episodes": result.table(),
        "films": {"of": "failures", "episodes": [], "missing": "No films were asked for."},
    }


def _named(device: str) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device


def weight_hashes(policy: Path) -> dict[str, str]:
    """File name -> SHA-256 of every file of weights in a saved policy's folder."""
    files = sorted([*policy.glob("*.safetensors"), *policy.glob("*.pt")])
    hashes = {}
    for path in files:
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def write_results(record: dict[str, Any], path: Path) -> None:
    """Write results.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2))
