"""The embodied workload: what the shared run loop has to know of a recipe for policies that act in simulators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import embodied
import envs
import policies
from embodied.datasets import require_same_origin
from embodied.interaction.before_and_after import film_before_and_after
from embodied.interaction.cost_profile import build_profile
from embodied.interaction.device_memory import device_bytes, require_device_memory
from embodied.interaction.flow import embodied_flow, recording_origin
from embodied.interaction.placement import make_plan, planned
from embodied.interaction.profiling import measure
from embodied.interaction.recipe import Recipe, parse_recipe
from embodied.interaction.training_run import EmbodiedRun, Steps
from embodied.runs.folder import RunFolder
from embodied.runs.progress import RunProgress
from embodied.scheduler.flow import Flow
from embodied.scheduler.launcher import Launcher
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner.profile import FlowProfile
from embodied.training.progress import Progress
from embodied.training.workload import Farewell, Outcome, Workload
from policies.vla.attention import require_flash
from policies.vla.checkpoint import find_here
from policies.vla.options import VLAConfig


class EmbodiedWorkload(Workload):
    """A recipe for a policy."""

    program: ClassVar[str] = "embodied"
    progress: ClassVar[type[Progress]] = Steps
    places = ("policy.checkpoint", "env.assets")
    writes = ("record.dataset",)
    # the code that stages run; what only commands and reports need changes no cost
    packages = (
        *(
            Path(embodied.__file__).parent / n
            for n in ("algorithms", "interaction", "learner", "scheduler", "training")
        ),
        *(Path(package.__file__ or "").parent for package in (envs, policies)),
    )

    def __init__(self, recipe: Recipe) -> None:
        self.recipe: Recipe = recipe

    def placed(self) -> Plan:
        """See Workload."""
        return make_plan(self.recipe, embodied_flow(self.recipe, Path()))

    def flow(self, plan: Plan, folder: RunFolder | None = None) -> Flow:
        """See Workload."""
        recipe = planned(self.recipe, plan)
        if folder is None:
            return embodied_flow(recipe, Path())
        return embodied_flow(recipe, folder.path / "alarms", folder.videos / "training")

    def costs(self) -> dict[str, Any]:
        """See Workload."""
        recipe, values = self.recipe, self.recipe.as_dict()
        env = {key: value for key, value in values["env"].items() if key not in ("slots", "processes")}
        names = ("policy", "algorithm", "learner", "rollout")
        cluster = {
            "device": recipe.device(),
            "threads": recipe.cluster.threads,
            "every_gpu": recipe.cluster.device == "auto",
        }
        return {"env": env, "cluster": cluster} | {name: values[name] for name in names}

    def measure(self, say: Callable[[str], None]) -> FlowProfile:
        """See Workload."""
        return build_profile(self.recipe, measure(self.recipe, say))

    @property
    def per_iteration(self) -> int:
        """Control steps."""
        return self.recipe.steps_per_iteration

    @property
    def ahead(self) -> int:
        """See Workload."""
        return self.recipe.algorithm.max_staleness

    def admit(self) -> None:
        """See Workload; of what a policy needs, only flash-attention's package and a checkpoint may be missing."""
        if getattr(self.recipe.policy, "attention", None) == "flash":
            require_flash(self.recipe.policy.precision)
        require_device_memory(self.recipe, device_bytes(self.recipe.device()))
        if self._start_from is not None:
            find_here(self._start_from)
        if self.recipe.record.dataset is not None:
            folder = Path(self.recipe.record.dataset).expanduser()
            for place in (folder, *folder.glob("worker_*")):
                require_same_origin(place, recording_origin(self.recipe))

    @property
    def _start_from(self) -> str | None:
        return getattr(self.recipe.policy, "checkpoint", None)

    def prepare(self) -> str:
        """See Workload."""
        starting = f"starting {self.recipe.env.num_envs} x {self.recipe.env.id} ..."
        if isinstance(self.recipe.policy, VLAConfig) and self._start_from is None:
            return (
                f"{self.recipe.policy.name} begins with fresh weights, which hardly ever succeed; give "
                f"policy.checkpoint (embodied sft makes one from demonstrations)\n{starting}"
            )
        return starting

    def begin(self, folder: RunFolder, system: Launcher, screen: RunProgress) -> EmbodiedRun:
        """See Workload."""
        return EmbodiedRun(self, self.recipe, folder, system, screen)

    def finish(self, outcome: Outcome, say: Callable[[str], None]) -> None:
        """Film the untrained and the trained policy."""
        film_before_and_after(outcome, self.recipe, say)

    def farewell(self, outcome: Outcome) -> Farewell:
        """See Workload."""
        folder, result = outcome.folder, outcome.result
        video = result.get("videos", {}).get("both")
        files = {
            "video": None if video is None else Path(video),
            "checkpoint": Path(result["checkpoint"]),
            "metrics": folder.metrics,
            "trace": folder.trace,
        }
        return Farewell(
            (), files, (("embodied eval ", folder.path, " --episodes 256"), ("embodied record ", folder.path))
        )


def parse_workload(name: str, values: dict[str, Any]) -> EmbodiedWorkload:
    """Of a composed recipe. Raises ConfigurationError listing every fault found."""
    return EmbodiedWorkload(parse_recipe(name, values))
