"""The generation worker: answers questions with groups, each handed on as soon as its last member is finished.

A round may be cut: once enough groups are whole, the rest stop where they are and go on in the next round, with newer
weights; every token says which weights drew it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import torch

from embodied.learner.residency import Parking, resident_bytes
from embodied.random import derive_seed
from embodied.scheduler import Input, Output, Worker, WorkerContext
from embodied.scheduler.plan import StagePlan
from embodied.scheduler.routing import balanced_range
from embodied.scheduler.trace import LOAD
from reasoning.generation.api import Finish, Request, Response, Sampling
from reasoning.generation.engines import EngineConfig, open_engine
from reasoning.models.loading import end_tokens, open_model, open_tokenizer
from reasoning.training.messages import Answered, Group, Question, Round

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class GenerateWorkerOptions:
    """model: to begin with. engine: what generates. dtype: of weights and cache. slots: responses generated at once by
    one worker. training, evaluation: how tokens are drawn. max_staleness: updates that a token may lie behind when it
    is learnt from."""

    model: str
    engine: EngineConfig
    dtype: Literal["float32", "bfloat16"]
    slots: int
    training: Sampling
    evaluation: Sampling
    max_staleness: int


@dataclasses.dataclass(eq=False)
class _Open:
    """A group under way. began: version of the weights when it was. done, parts: finished and stopped members."""

    question: Question
    began: int
    done: dict[int, Response] = dataclasses.field(default_factory=dict)
    parts: dict[int, Response] = dataclasses.field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return len(self.done) == len(self.question.seeds)


class GenerateWorker(Worker):
    """Owns an engine; its weights come from the learner."""

    questions = Input(Question)
    groups = Output(Group)

    def __init__(self, context: WorkerContext, options: GenerateWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: GenerateWorkerOptions = options
        self._carried: list[_Open] = []
        self._parking = Parking()

    async def setup(self, announced: Mapping[str, Any]) -> None:
        """Load the model and make its engine."""
        options, device = self.options, self.context.device
        with self.timed("build engine"):
            seed = derive_seed(self.context.seed, "model")
            tokenizer = open_tokenizer(options.model)
            model = open_model(options.model, seed=seed, dtype=torch.float32, device="cpu")
            longest = max(options.training.max_new_tokens, options.evaluation.max_new_tokens)
            self.engine = open_engine(
                options.engine,
                model,
                eos=end_tokens(model, tokenizer),
                tokenizer=tokenizer,
                slots=options.slots,
                capacity=announced["prompts"].longest + longest,
                dtype=_DTYPES[options.dtype],
                device=device,
                version=-1,
                timed=lambda: self.timed("generate"),
            )
            # where new weights arrive, before the engine lays them out its own way
            self._weights: dict[str, torch.Tensor] = model.state_dict()

    def weights(self) -> dict[str, Any]:
        """The tensors that new weights are written to."""
        return self._weights

    def share_weights(self, weights: dict[str, Any]) -> None:
        """Read the learner's tensors from now on, whenever they have changed."""
        self._weights = weights

    def weights_changed(self, version: int) -> None:
        """Let the engine go on with the new weights; all cached keys and values are dropped."""
        with self.timed("update weights"):
            self.engine.update_weights(self._weights, version)

    def memory(self) -> int:
        """Bytes of the engine's weights, and of where new ones arrive if that is the same device."""
        size = _DTYPES[self.options.dtype].itemsize
        engine = sum(tensor.numel() * size for tensor in self._weights.values())
        return engine + (resident_bytes(self._weights.values()) if self.context.device.startswith("cpu") else 0)

    def unload(self) -> None:
        """Let the engine's memory go, and park the weights that it can be rebuilt from."""
        with self.timed("unload", LOAD):
            self.engine.sleep()
            self._parking.unload(self._weights.values())

    def load(self) -> None:
        """Rebuild it."""
        with self.timed("load", LOAD):
            self._parking.load()
            self.engine.update_weights(self._weights, self.engine.version)

    async def answer(self, round: Round) -> Answered:
        """Answer a round's questions. In training a worker stops once only its part of the surplus is not whole."""
        training = round.purpose == "train"
        asked = [question async for _, question in self.questions]
        fresh = [_Open(question, self.engine.version) for question in asked]
        under_way = [*self._carried, *fresh] if training else fresh
        sampling = self.options.training if training else self.options.evaluation
        quota = len(under_way)
        if training:
            self._carried = []
            quota -= len(balanced_range(self.context.rank, self.context.world, round.surplus))
        return await self._generate(under_way, sampling, quota, keep=training)

    async def _generate(self, under_way: list[_Open], sampling: Sampling, quota: int, *, keep: bool) -> Answered:
        requests: list[Request] = []
        owners: dict[int, tuple[_Open, int]] = {}
        for group in under_way:
            for member, seed in enumerate(group.question.seeds):
                if member not in group.done:
                    begun = group.parts.pop(member, None)
                    prompt = tuple(group.question.prompt.tolist())
                    owners[len(requests)] = (group, member)
                    requests.append(Request(len(requests), prompt, sampling, seed, begun))
        drawn = -sum(len(r.begun.tokens) for r in requests if r.begun is not None)
        whole = responses = 0
        # what may not wait for another update has to be finished now
        due = {id(g) for g in under_way if keep and self.engine.version + 1 - g.began > self.options.max_staleness}
        stopping = False
        async for response in self.engine.generate(requests):
            drawn += len(response.tokens)
            group, member = owners[response.request.id]
            if response.finish is Finish.ABORTED:
                if len(response.tokens):
                    group.parts[member] = response
                continue
            group.done[member] = response
            if not group.whole:
                continue
            whole += 1
            due.discard(id(group))
            responses += len(group.question.seeds)
            await self.groups.put(_finished(group), key=group.question.number)
            if keep and whole >= quota and not due and not stopping:
                stopping = True
                self.engine.abort()
        left = [group for group in under_way if not group.whole]
        if keep:
            self._carried = left
        await self.groups.end()
        return Answered(responses, drawn, len(left))

    @classmethod
    def divide_state(cls, parts: list[dict[str, Any]], placed: StagePlan, options: Any) -> list[dict[str, Any]]:
        """Groups under way can go on with whichever worker."""
        world = len(placed.devices)
        if len(parts) == world:
            return parts
        carried = [group for part in parts for group in part["carried"]]
        return [{"carried": carried[rank::world]} for rank in range(world)]

    def state_dict(self) -> dict[str, Any]:
        """The groups that go on in the next round."""
        return {"carried": [_saved(group) for group in self._carried]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with them."""
        self._carried = [_restored(saved, self.options.training) for saved in state["carried"]]


def _finished(group: _Open) -> Group:
    members = [group.done[member] for member in range(len(group.question.seeds))]
    longest = max(len(response.tokens) for response in members)

    def stacked(name: str, dtype: torch.dtype) -> torch.Tensor:
        rows = torch.zeros(len(members), longest, dtype=dtype)
        for row, response in zip(rows, members, strict=True):
            values = getattr(response, name)
            row[: len(values)] = values
        return rows

    return Group(
        number=group.question.number,
        problem=group.question.problem,
        prompt=group.question.prompt,
        tokens=stacked("tokens", torch.int64),
        logprobs=stacked("logprobs", torch.float32),
        versions=stacked("versions", torch.int64),
        lengths=torch.tensor([len(response.tokens) for response in members]),
        truncated=torch.tensor([response.truncated for response in members]),
    )


def _saved(group: _Open) -> dict[str, Any]:
    question = group.question
    members = {str(m): _saved_response(r) for m, r in [*group.done.items(), *group.parts.items()]}
    return {
        "number": question.number,
        "problem": question.problem,
        "prompt": question.prompt,
        "seeds": [str(seed) for seed in question.seeds],
        "began": group.began,
        "members": members,
    }


def _saved_response(response: Response) -> dict[str, Any]:
    return {
        "tokens": response.tokens,
        "logprobs": response.logprobs,
        "versions": response.versions,
        "finish": response.finish.value,
    }


def _restored(saved: dict[str, Any], sampling: Sampling) -> _Open:
    seeds = tuple(int(seed) for seed in saved["seeds"])
    group = _Open(Question(saved["number"], saved["problem"], saved["prompt"], seeds), saved["began"])
    for member, values in saved["members"].items():
        request = Request(int(member), tuple(saved["prompt"].tolist()), sampling, seeds[int(member)])
        finish = Finish(values["finish"])
        response = Response(request, values["tokens"], values["logprobs"], values["versions"], finish)
        (group.parts if finish is Finish.ABORTED else group.done)[int(member)] = response
    return group
