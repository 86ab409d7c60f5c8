"""Our own generation engine: continuous batching over slots, for the models that `decoder` serves.

A finished response leaves its slot to the next request at once, so a batch of ragged lengths costs what its tokens
cost and not what its longest member would. It runs in the caller's event loop, one step of the model between awaits.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch

from embodied.errors import ConfigurationError, CorrectnessAlarm
from reasoning.generation.api import Engine, Finish, Request, Response, check_requests
from reasoning.generation.cache import Prefix
from reasoning.generation.decoder import Decoder
from reasoning.generation.sampling import RowSampling, TokenNoise, draw
from reasoning.generation.stepping import SteppingEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PREFILL_TOKENS = 8192


@dataclasses.dataclass(eq=False)
class _Prompt:
    """What several requests begin with. waiting: how many of them have no slot yet. prefix: once it is worked out."""

    tokens: tuple[int, ...]
    waiting: int = 0
    prefix: Prefix | None = None


@dataclasses.dataclass(eq=False)
class _Row:
    """A request under way, with what it has so far."""

    request: Request
    prompt: _Prompt
    stream: collections.deque[Response]
    noise: TokenNoise
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]

    @property
    def length(self) -> int:
        """Tokens of prompt and response so far; the last one is not in the cache yet."""
        return len(self.request.prompt) + len(self.tokens)


class NativeEngine(SteppingEngine):
    """Generates with a copy of a transformers model.

    Args:
        model: gives the architecture and the first weights; it is not kept, and may go on training.
        eos: token ids that end a response.
        tokenizer: needed for requests with stop texts.
        slots: responses generated at once.
        capacity: tokens of the longest sequence, prompt and response.
        dtype: of weights, activations and cache; the model's own by default.
        device: the model's own by default.
        version: of the first weights.
        timed: what every step of the model runs in, for whoever records times.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos: Iterable[int],
        tokenizer: PreTrainedTokenizerBase | None = None,
        slots: int = 32,
        capacity: int = 2048,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        version: int = 0,
        timed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(timed, slots)
        self.version = version
        self._decoder = Decoder(
            model,
            dtype=dtype or model.dtype,
            device=torch.device(device) if device is not None else model.device,
            capacity=capacity,
        )
        self._cache = self._decoder.new_cache(slots, capacity)
        self._eos = frozenset(eos)
        self._tokenizer = tokenizer
        self._rows: list[_Row] = []
        self._waiting: collections.deque[_Row] = collections.deque()
        self._options: RowSampling | None = None

    def _enter(self, requests: list[Request], finished: collections.deque[Response]) -> None:
        known = [row.request.id for row in [*self._rows, *self._waiting]]
        check_requests(requests, known, capacity=self._cache.capacity, decodes=self._tokenizer is not None)
        prompts: dict[tuple[int, ...], _Prompt] = {}
        for request in requests:
            row = _begin(request, finished, prompts)
            row.prompt.waiting += 1
            self._waiting.append(row)

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._decoder.load(weights)
        self.version = version
        for row in self._waiting:
            row.prompt.prefix = None
        # what is under way is worked out anew, with its tokens as part of the prompt, before anything that waits
        for row in self._rows:
            row.prompt = _Prompt((*row.request.prompt, *row.tokens), waiting=1)
        self._waiting.extendleft(reversed(self._rows))
        self._rows.clear()

    def sleep(self) -> None:
        if self._rows or self._waiting:
            raise ConfigurationError(f"{len(self._rows) + len(self._waiting)} requests are under way; abort them first")
        self._decoder.forget()
        self._cache.release()

    def abort(self, ids: Iterable[int] | None = None) -> None:
        chosen = None if ids is None else set(ids)
        for row in [r for r in [*self._rows, *self._waiting] if chosen is None or r.request.id in chosen]:
            if row in self._rows:
                self._release(self._rows.index(row))
            else:
                self._waiting.remove(row)
                _leave(row.prompt)
            row.stream.append(self._response(row, Finish.ABORTED))
        self._hand_on()

    def _advance(self) -> None:
        self._admit()
        if self._rows:
            self._step()

    def _admit(self) -> None:
        """Give free slots to waiting requests: each prompt is worked out once, however many share it."""
        free = self._cache.slots - len(self._rows)
        if not free or not self._waiting:
            return
        if not self._rows:
            self._cache.reset()
        chosen: list[_Row] = []
        fresh: list[_Prompt] = []
        budget = _PREFILL_TOKENS
        while self._waiting and len(chosen) < free:
            prompt = self._waiting[0].prompt
            if prompt.prefix is None and prompt not in fresh:
                budget -= len(prompt.tokens)
                if fresh and budget < 0:
                    break
                fresh.append(prompt)
            chosen.append(self._waiting.popleft())
        worked_out = self._decoder.prefill([p.tokens for p in fresh]) if fresh else []
        for prompt, prefix in zip(fresh, worked_out, strict=True):
            prompt.prefix = prefix
        first, logits = len(self._rows), []
        for row in chosen:
            prefix = row.prompt.prefix
            assert prefix is not None
            self._cache.fill(len(self._rows), prefix)
            self._rows.append(row)
            logits.append(prefix.logits)
            _leave(row.prompt)
        self._options = None
        sampling = [row.request.sampling for row in chosen]
        options = RowSampling.of(sampling, self._decoder.shape.vocabulary, self._decoder.device)
        self._accept(first, torch.stack(logits), options)

    def _step(self) -> None:
        """One token for every row."""
        tokens = [row.tokens[-1] for row in self._rows]
        logits = self._decoder.step(tokens, [row.length - 1 for row in self._rows], self._cache)
        if self._options is None:
            sampling = [row.request.sampling for row in self._rows]
            self._options = RowSampling.of(sampling, self._decoder.shape.vocabulary, self._decoder.device)
        self._accept(0, logits, self._options)

    @torch.inference_mode()
    def _accept(self, first: int, logits: torch.Tensor, options: RowSampling) -> None:
        """Draw the next token of the rows from `first` on, and let those that end go."""
        rows = self._rows[first:]
        noise = torch.tensor([row.noise.at(len(row.tokens)) for row in rows], device=logits.device)
        tokens, logprobs = draw(logits, noise, options)
        drawn, their_logprobs = tokens.tolist(), logprobs.tolist()
        ended: list[int] = []
        for index, (row, token, logprob) in enumerate(zip(rows, drawn, their_logprobs, strict=True), start=first):
            if logprob != logprob:  # NaN
                raise CorrectnessAlarm(
                    f"the model's logits are not finite at token {len(row.tokens)} of request {row.request.id}: its "
                    "weights, or an activation, overflowed. Look at the last update; try dtype float32."
                )
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
            finish = self._finish(row, token)
            if finish is not None:
                row.stream.append(self._response(row, finish))
                ended.append(index)
        for index in reversed(ended):
            self._release(index)

    def _finish(self, row: _Row, token: int) -> Finish | None:
        sampling = row.request.sampling
        if token in self._eos:
            return Finish.EOS
        if sampling.stop and self._ends_with_stop(row):
            return Finish.STOP
        return Finish.LENGTH if len(row.tokens) >= sampling.max_new_tokens else None

    def _ends_with_stop(self, row: _Row) -> bool:
        """Whether a stop text is complete; it was not before the last token, so it lies within the last few tokens."""
        assert self._tokenizer is not None
        longest = max(len(text.encode()) for text in row.request.sampling.stop)
        # every token is at least one byte; some more, because special ones may be none
        tail = self._tokenizer.decode(row.tokens[-(longest + 8) :])
        return any(text in tail for text in row.request.sampling.stop)

    def _release(self, index: int) -> None:
        """Free a slot; the last row moves into it, so that the rows stay the first slots."""
        last = self._rows.pop()
        if index < len(self._rows):
            self._rows[index] = last
            self._cache.move(len(self._rows), index, last.length)
        self._options = None

    def _response(self, row: _Row, finish: Finish) -> Response:
        return Response(
            request=row.request,
            tokens=torch.tensor(row.tokens, dtype=torch.int64),
            logprobs=torch.tensor(row.logprobs, dtype=torch.float32),
            versions=torch.tensor(row.versions, dtype=torch.int64),
            finish=finish,
        )


def _begin(request: Request, stream: collections.deque[Response], prompts: dict[tuple[int, ...], _Prompt]) -> _Row:
    """A new row; `prompts` are those of the same call, to share."""
    begun = request.begun
    kept = ([], [], []) if begun is None else (begun.tokens.tolist(), begun.logprobs.tolist(), begun.versions.tolist())
    sequence = (*request.prompt, *kept[0])
    return _Row(request, prompts.setdefault(sequence, _Prompt(sequence)), stream, TokenNoise(request.seed), *kept)


def _leave(prompt: _Prompt) -> None:
    """One request less waits for this prompt; after the last its keys and values are let go."""
    prompt.waiting -= 1
    if prompt.waiting == 0:
        prompt.prefix = None


async def collect(engine: Engine, requests: Iterable[Request]) -> list[Response]:
    """All responses, in the order of the requests."""
    requests = list(requests)
    found = {response.request.id: response async for response in engine.generate(requests)}
    return [found[request.id] for request in requests]
