"""The contract of a generation engine: requests in, finished responses out, in the order in which they finish.

An engine knows tokens, not problems. Group members are requests with equal prompts and different seeds; an engine works
a shared prompt out once.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Literal

import torch

from embodied.config import config
from embodied.errors import ConfigurationError

_LOWEST_TEMPERATURE = 1e-6  # logits divided by it stay far from the end of float32


@config
class Sampling:
    """How tokens are drawn.

    decode: `sample` draws, `greedy` takes the likeliest. temperature: divides the logits; at least 0.000001.
    top_k: draw among the so many likeliest; None takes all. top_p: then among the likeliest that together have this
    probability. max_new_tokens: of a response, its end of sequence included. stop: texts that end a response.

    Log-probabilities are those of the distribution drawn from, after temperature, top_k and top_p; greedy ones are at
    the same temperature.
    """

    decode: Literal["sample", "greedy"] = "sample"
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.temperature < _LOWEST_TEMPERATURE:
            raise ValueError(
                f"temperature is {self.temperature}; it must be at least {_LOWEST_TEMPERATURE:g} (decode=greedy draws "
                "nothing)"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        for name in ("top_k", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if "" in self.stop:
            raise ValueError("stop has an empty text in it, which would end every response at once")


class Finish(enum.StrEnum):
    """Why a response ended: its end of sequence, a stop text, the length limit (truncated), or an abort."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclasses.dataclass(frozen=True)
class Request:
    """One response that is wanted.

    id: the caller's, different from those of all requests under way. prompt: token ids, at least one.
    seed: the same request with the same seed gives the same tokens, whatever else is generated beside it (up to
    rounding of the logits). begun: an aborted response to continue; its tokens are kept as they are.
    """

    id: int
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    begun: Response | None = None


@dataclasses.dataclass(frozen=True)
class Response:
    """tokens: int64 [N], what was drawn; an end of sequence is part of it. logprobs: float32 [N], of each token under
    the distribution it was drawn from. versions: int64 [N], of the weights that drew each.
    """

    request: Request
    tokens: torch.Tensor
    logprobs: torch.Tensor
    versions: torch.Tensor
    finish: Finish

    @property
    def truncated(self) -> bool:
        """It reached the length limit without an end."""
        return self.finish is Finish.LENGTH


class Engine(abc.ABC):
    """All methods belong to one event loop; none blocks it for longer than one step of the model."""

    version: int

    @abc.abstractmethod
    def generate(self, requests: Iterable[Request]) -> AsyncIterator[Response]:
        """Responses as they finish. May be called again while another stream is under way: they share the batch.

        Leaving the stream early aborts what is left of it.
        Raises ConfigurationError, before anything is generated, for a request that cannot be served.
        """

    @abc.abstractmethod
    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Go on with these weights: by the model's own parameter names, complete. All cached keys and values are
        dropped; responses under way are kept and continued. Raises CorrectnessAlarm when names or shapes differ.
        """

    @abc.abstractmethod
    def sleep(self) -> None:
        """Let go of weights, keys and values, until `update_weights`; for when nothing is under way.

        Raises ConfigurationError when something is, or where the engine cannot let its memory go.
        """

    @abc.abstractmethod
    def abort(self, ids: Iterable[int] | None = None) -> None:
        """End these requests, or all: they finish as ABORTED with the tokens they have. Unknown ids are left alone."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Stop after the current step, keeping everything; streams wait."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Go on after `pause`."""


def check_requests(requests: Iterable[Request], known: Iterable[int], *, capacity: int, decodes: bool) -> None:
    """Raise ConfigurationError for a request that no engine can serve. known: ids under way. capacity: tokens of the
    longest sequence. decodes: whether there is a tokenizer to look for stop texts with."""
    taken = set(known)
    for request in requests:
        if request.id in taken:
            raise ConfigurationError(f"two requests under way have the id {request.id}; ids must differ")
        taken.add(request.id)
        if not request.prompt:
            raise ConfigurationError(f"request {request.id} has an empty prompt; give at least one token")
        limit = request.sampling.max_new_tokens
        if len(request.prompt) + limit > capacity:
            raise ConfigurationError(
                f"request {request.id} may need {len(request.prompt) + limit} tokens ({len(request.prompt)} of prompt, "
                f"max_new_tokens {limit}), but the engine's capacity is {capacity}. Raise capacity, lower "
                "max_new_tokens, or drop long prompts with problems.max_prompt_tokens."
            )
        if request.begun is not None and len(request.begun.tokens) >= limit:
            raise ConfigurationError(
                f"request {request.id} continues a response of {len(request.begun.tokens)} tokens, but may have "
                f"max_new_tokens {limit}"
            )
        if request.sampling.stop and not decodes:
            raise ConfigurationError("stop texts need the engine's tokenizer; it was made without one")
