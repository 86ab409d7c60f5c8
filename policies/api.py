"""The policy contract: what a policy looks like to the workers that act with it and train it.

A policy turns observations into chunks of actions and, for the same inputs, tells the log-probability of what it
drew. `act` and `evaluate` share one function for log-probabilities, so that evaluating what was just drawn gives the
same number: the importance ratio of the first update is 1 by construction.

Shape letters: B rows, C actions of a chunk, D tokens of an action (for Gaussian policies: its dimensions), V values.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import math
from typing import Any, ClassVar, Literal, Protocol

import torch
from tensordict import TensorDict
from torch import nn

from embodied.config import config


class Observed(Protocol):
    """What `prepare` reads of an observation; `envs.api.Observation` is one."""

    state: torch.Tensor  # float32 [B, S]
    images: torch.Tensor | None  # uint8 [B, V, H, W, 3]
    privileged: torch.Tensor | None  # float32 [B, P]
    instruction: list[str]  # B texts


class Noise(Protocol):
    """Where the randomness of a draw comes from, row by row; `embodied.random.RowNoise` is one."""

    def uniform(self, *shape: int) -> torch.Tensor:
        """float32 [B, *shape] in (0, 1)."""

    def normal(self, *shape: int) -> torch.Tensor:
        """float32 [B, *shape], standard normal."""


@dataclasses.dataclass(frozen=True)
class Interface:
    """The environment's side of a policy: sizes of what it sees and of what it must emit.

    action_kind "continuous": `action_dim` numbers within [action_low, action_high]; "discrete": one index below
    `choices` (action_dim is 1).
    """

    state_dim: int
    action_dim: int
    action_kind: Literal["continuous", "discrete"] = "continuous"
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    choices: int = 0
    privileged_dim: int = 0
    cameras: int = 0
    image_height: int = 0
    image_width: int = 0
    instructions: tuple[str, ...] = ("",)


class Decode(enum.Enum):
    """How an action is taken from the distribution."""

    SAMPLE = "sample"
    GREEDY = "greedy"  # the most probable token; the mean of a Gaussian


_LOWEST_TEMPERATURE = 1e-6  # logits divided by it stay far from the end of float32


@config
class Sampling:
    """How actions are drawn (decode: sample, or greedy for the most probable), in this fixed order: mask to the action
    vocabulary, temperature, top-k, top-p, softmax.

    Log-probabilities, in `act` and `evaluate`, sampled or greedy, are those of the resulting distribution.
    top_k 0 and top_p 1 mean no limit. Gaussian policies scale their standard deviation by `temperature`.
    """

    decode: Literal["sample", "greedy"] = "sample"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not _LOWEST_TEMPERATURE <= self.temperature < math.inf:
            raise ValueError(
                f"temperature is {self.temperature}; expected a finite number, at least {_LOWEST_TEMPERATURE:g} "
                "(decode: greedy takes the mode)"
            )
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"top_k is {self.top_k} and top_p {self.top_p}; expected top_k >= 0 and 0 < top_p <= 1")


@dataclasses.dataclass(frozen=True)
class PolicyOutput:
    """What `act` decided for B rows.

    actions float32 [B, C, A]: what the environment executes. tokens [B, C, D]: what was drawn, in the form
    `evaluate` takes (int64 token ids, or float32 unclipped Gaussian draws). logprobs float32 [B, C, D]: of those
    draws. value float32 [B, V] or None for a policy without value head; V is 1 (per chunk) or C (per action).
    """

    actions: torch.Tensor
    tokens: torch.Tensor
    logprobs: torch.Tensor
    value: torch.Tensor | None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `evaluate` finds, differentiable: logprobs, entropy float32 [B, C, D]; value float32 [B, V] or None."""

    logprobs: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor | None


@dataclasses.dataclass(frozen=True)
class Imitation:
    """How well demonstrated actions are predicted: scalars, averaged over valid actions of the batch.

    loss carries the gradient; accuracy: fraction of action tokens predicted exactly; distance: mean absolute error of
    the predicted action in normalised units.
    """

    loss: torch.Tensor
    accuracy: torch.Tensor
    distance: torch.Tensor


@config
class PolicyConfig:
    """Options every policy has; each kind of policy derives its own record from it.

    name: `mlp`, `cnn`, `openvla/7b` (or `openvla-7b`), `openvla_oft/tiny`, ...; `embodied policies` lists them.
    chunk: C, how many actions are emitted at once; None takes the policy's own, `default_chunk`.
    value: whether there is a value head, and whether it gives one value a chunk or one an action.
    Of the kind, not of the recipe: resizes, whether it brings pictures of any size to its own.
    """

    default_chunk: ClassVar[int] = 1
    resizes: ClassVar[bool] = False
    name: str
    chunk: int | None = None
    value: Literal["none", "chunk", "action"] = "chunk"

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; expected at least 1")
        if self.value == "action" and self.actions == 1:
            raise ValueError("value: action gives one value an action of a chunk; with chunk 1 use value: chunk")

    @property
    def actions(self) -> int:
        """C: the chunk asked for, or the policy's own."""
        return self.default_chunk if self.chunk is None else self.chunk


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """What a built policy is: C, A, D, V as above (V is 0 without a value head)."""

    name: str
    chunk: int
    action_dim: int
    tokens_per_action: int
    values: int


class Policy(nn.Module, abc.ABC):
    """A torch module that acts and can be trained with policy gradients."""

    spec: PolicySpec

    @abc.abstractmethod
    def prepare(self, observation: Observed) -> TensorDict:
        """Everything the network needs of B observations (tokenised, normalised, resized), batch size [B].

        Deterministic and without gradient; its result is stored in trajectories and fed to `evaluate` again.
        """

    @abc.abstractmethod
    def act(self, inputs: TensorDict, sampling: Sampling, noise: Noise) -> PolicyOutput:
        """Decide. Called under `torch.no_grad` and in eval mode; one forward pass gives actions, log-probabilities and
        values. Greedy decoding draws nothing from `noise`."""

    @abc.abstractmethod
    def evaluate(self, inputs: TensorDict, tokens: torch.Tensor, sampling: Sampling) -> Evaluation:
        """Log-probability and entropy of `tokens` [B, C, D] given `inputs`, and values; with gradient."""

    @abc.abstractmethod
    def value(self, inputs: TensorDict) -> torch.Tensor:
        """float32 [B, V] values alone. Raises ConfigurationError for a policy without value head."""

    @abc.abstractmethod
    def metadata(self) -> dict[str, Any]:
        """JSON-able description from which `policies.load` rebuilds the module before it loads the weights."""

    def summary(self, inputs: TensorDict, rows: torch.Tensor) -> torch.Tensor:
        """float64 [1, M]: what the policy keeps in mind of the inputs it is trained on, such as their mean; M is 0 by
        default. rows int64: the inputs that count, in an order that does not depend on who collected them."""
        return torch.empty(1, 0, dtype=torch.float64)

    def absorb(self, summaries: torch.Tensor) -> None:
        """Take in the summaries [W, M] of W ranks or batches. Called after an update and before its weights are handed
        on, so that a rollout is evaluated as it was acted; changes buffers only. Nothing by default."""

    def make_room(self, instructions: tuple[str, ...]) -> None:
        """Be ready for these instructions, which may be longer than those of training; nothing to do by default."""

    def blocks(self) -> list[nn.Module]:
        """The repeated parts (transformer layers) that are sharded one by one and whose activations may be recomputed
        in the backward pass; none by default."""
        return []

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Trainable parameters by role, `actor` and `critic`, so that each may have its own learning rate and the actor
        can be held still while the critic warms up. Shared parameters belong to `actor`."""
        critic = [p for name, p in self.named_parameters() if p.requires_grad and name.startswith("value_head.")]
        chosen = {id(p) for p in critic}
        return {"actor": [p for p in self.parameters() if p.requires_grad and id(p) not in chosen], "critic": critic}
