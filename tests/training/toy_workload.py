"""The smallest workload there can be: one stage grows beans, the other weighs them and calls the sum its weights."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from embodied.config import config
from embodied.learner.update import Update
from embodied.runs.options import CheckpointConfig, LoggerConfig, RunConfig
from embodied.scheduler import Flow, Input, Output, Worker
from embodied.scheduler.options import ClusterConfig
from embodied.scheduler.planner.profile import (
    Cluster,
    EdgeProfile,
    FlowProfile,
    NodeGroup,
    StageCost,
    StageProfile,
    TimeModel,
)
from embodied.training.placement import named_plan
from embodied.training.planning import check_suits
from embodied.training.progress import Progress
from embodied.training.recipe import TrainingGoal
from embodied.training.run import Collection, Evaluation, TrainingRun
from embodied.training.workload import Farewell, Workload

PER_ITERATION = 3


@dataclasses.dataclass(frozen=True)
class Bean:
    weight: float


class Field(Worker):
    beans = Output(Bean)

    def __init__(self, context, options=None):
        super().__init__(context, options)
        self.total = torch.zeros(1)

    async def grow(self, iteration: int) -> int:
        for number in range(PER_ITERATION):
            # grows with what was learnt, so that a run which resumes from other weights differs
            await self.beans.put(Bean(float(self.total) * 0.5 + iteration + number), key=number)
        await self.beans.end()
        return PER_ITERATION

    def weights(self):
        return {"total": self.total}

    def share_weights(self, weights):
        self.total = weights["total"]


class Scale(Worker):
    beans = Input(Bean)

    def __init__(self, context, options=None):
        super().__init__(context, options)
        self.total, self.version = torch.zeros(1), 0

    async def learn(self, iteration: int) -> Update:
        with self.timed("weigh"):
            async for _, bean in self.beans:
                self.total += bean.weight
        self.version += 1
        return Update({"learner/total": float(self.total)}, ("heavy",), self.version)

    async def weigh(self) -> float:
        return float(self.total)

    def export(self, folder) -> None:
        folder.mkdir()
        (folder / "total.txt").write_text(str(float(self.total)))

    def weights(self):
        return {"total": self.total}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "version": self.version}

    def load_state_dict(self, state) -> None:
        self.total.copy_(state["total"])
        self.version = state["version"]


@config
class BeanGoal(TrainingGoal):
    beans: int = 12

    @property
    def limit(self) -> int:
        return self.beans

    @property
    def measure(self) -> str:
        return "eval/total"

    @property
    def wish(self) -> str:
        return f"the beans weighed at least {self.at_least:g}"


@config
class Every:
    every: int = 2


@dataclasses.dataclass(frozen=True)
class BeanRecipe:
    name: str = "beans"
    seed: int = 0
    evaluation: Every = Every()  # noqa: RUF009 - frozen, as all records
    goal: BeanGoal = BeanGoal()  # noqa: RUF009
    checkpoint: CheckpointConfig = CheckpointConfig(every=1, keep=20)  # noqa: RUF009
    cluster: ClusterConfig = ClusterConfig(device="cpu")  # noqa: RUF009
    logger: LoggerConfig = LoggerConfig(tensorboard=False)  # noqa: RUF009
    run: RunConfig = RunConfig()  # noqa: RUF009

    def device(self) -> str:
        return "cpu"

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass
class Beans(Progress):
    counted: ClassVar[str] = "beans"
    unit: ClassVar[str] = "beans"

    beans: int = 0


class BeanRun(TrainingRun):
    async def collect(self, iteration: int) -> Collection:
        async with self.system.turn("field"):
            grown = await self.system.group("field").call("grow", iteration)
        return Collection(sum(grown), {"field/grown": float(sum(grown))})

    async def evaluate(self) -> Evaluation:
        (total,) = await self.system.group("learner").call("weigh")
        return Evaluation({"eval/total": total}, f"{total:g} in all")

    def status(self, metrics: dict[str, float]) -> str:
        return f"{metrics['learner/total']:g} so far"


class BeanWorkload(Workload):
    program: ClassVar[str] = "beans"
    progress: ClassVar[type[Progress]] = Beans
    packages = ()
    per_iteration = PER_ITERATION
    ahead = 0
    field: ClassVar[type[Field]] = Field

    def __init__(self, recipe: BeanRecipe | None = None, run: type[BeanRun] = BeanRun) -> None:
        self.recipe = BeanRecipe() if recipe is None else recipe
        self.run, self.measured = run, 0

    def _flow(self) -> Flow:
        flow = Flow("beans")
        field = flow.stage("field", self.field, scales_with="beans")
        learner = flow.stage("learner", Scale, scales_with="beans")
        flow.edge(field.beans, learner.beans)
        flow.weights(learner, field)
        return flow

    def placed(self):
        return named_plan(self._flow(), self.recipe.cluster, "cpu", acting="field")

    def flow(self, plan, folder=None):
        flow = self._flow()
        check_suits(plan, flow, self.recipe.cluster)
        return flow

    def costs(self):
        return {"beans": PER_ITERATION}

    def measure(self, say):
        say("weighing")
        self.measured += 1
        cost = {"cpu": StageCost(time=TimeModel(per_item=1e-3), max_replicas=1)}
        return FlowProfile(
            flow="beans",
            stages={name: StageProfile(items=PER_ITERATION, on=cost) for name in ("field", "learner")},
            edges=(EdgeProfile(source="field", target="learner"),),
            cluster=Cluster(groups={"local": NodeGroup(cores_per_node=1)}),
        )

    def prepare(self) -> str:
        return "sowing ..."

    def begin(self, folder, system, screen):
        return self.run(self, folder, system, screen)

    def finish(self, outcome, say) -> None:
        say("harvested")

    def farewell(self, outcome) -> Farewell:
        return Farewell(("Beans are counted.",), {"trace": outcome.folder.trace, "film": None}, (("eat ", "beans"),))
