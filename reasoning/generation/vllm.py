"""The engine `vllm`: the contract of `api` on top of vLLM, which is an optional extra.

vLLM runs in this process (`LLMEngine` with its core in line) and takes one step where the event loop lets it, as the
native engine does: so an update falls between two steps, and the version that drew a token is known. It generates
with a model of its own, made from the configuration and filled by `update_weights`; no checkpoint is read.

Written against vLLM 0.32 and 0.33: `LLMEngine`, `EngineArgs`, `SamplingParams`, the worker call `reload_weights`, and
`reset_prefix_cache(reset_running_requests=True)`.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from embodied.errors import ConfigurationError, CorrectnessAlarm
from embodied.random import derive_seed
from reasoning.generation.api import Finish, Request, Response, Sampling, check_requests
from reasoning.generation.stepping import SteppingEngine
from reasoning.models.saving import published_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

INSTALL = "pip install 'embodied-rl[vllm]'"


def require_vllm() -> None:
    """Raise ConfigurationError when vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigurationError(
            f"the engine vllm needs vLLM, which is not installed: {INSTALL}, or use rollout.engine.kind=native"
        )


@dataclasses.dataclass(eq=False)
class _Row:
    """A request under way. key: its name inside vLLM, different for every row there ever was."""

    key: str
    request: Request
    stream: collections.deque[Response]
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]


class VllmEngine(SteppingEngine):
    """Generates with vLLM, on one device.

    The seed of a request decides its tokens as long as it runs through; one that is continued draws on from another
    point of its stream. Greedy decoding is served at temperature 1 only, because vLLM reports the log-probabilities of
    greedy tokens without temperature.

    Args:
        model: gives the architecture and the first weights; it is not kept.
        eos: token ids that end a response.
        tokenizer: needed for requests with stop texts.
        slots: responses generated at once.
        capacity: tokens of the longest sequence, prompt and response.
        dtype: of weights, activations and cache; the model's own by default.
        device: the model's own by default; vLLM is built for one kind.
        version: of the first weights.
        cache_gib: memory for keys and values.
        eager: without torch.compile and CUDA graphs, which take a minute or more to be made.
        timed: what every step of the model runs in, for whoever records times.

    Raises ConfigurationError when vLLM is not installed, or is built for another kind of device.
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
        cache_gib: float = 4.0,
        eager: bool = False,
        timed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        require_vllm()
        limit = model.config.max_position_embeddings
        if capacity > limit:
            raise ConfigurationError(
                f"sequences of {capacity} tokens are wanted, but this model was made for at most {limit}; "
                "lower max_new_tokens or the engine's capacity"
            )
        super().__init__(timed, slots)
        self.version = version
        self._capacity = capacity
        self._eos = sorted(set(eos))
        self._tokenizer = tokenizer
        device = torch.device(device) if device is not None else model.device
        # on the CPU vLLM lays its output matrix out anew, and of a tied one it would keep the first: it gets its own
        self._untied = bool(model.config.tie_word_embeddings) and device.type == "cpu"
        self._names = {name: tuple(value.shape) for name, value in _weights(model).items()}
        self._rows: dict[str, _Row] = {}
        self._made = 0
        self._asleep = False
        options = _options(model, tokenizer, slots, capacity, dtype or model.dtype, int(cache_gib * 2**30), eager)
        self._engine = _start(model, tokenizer, options, device, untied=self._untied)
        self._load(_weights(model))

    def _enter(self, requests: list[Request], finished: collections.deque[Response]) -> None:
        self._check(requests)
        for request in requests:
            self._add(request, finished)

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        given = {name: value for name, value in weights.items() if name in self._names or name != "lm_head.weight"}
        found = {name: tuple(value.shape) for name, value in given.items()}
        if found != self._names:
            wrong = sorted(n for n in found.keys() | self._names.keys() if found.get(n) != self._names.get(n))
            raise CorrectnessAlarm(
                f"these are not this model's weights: {len(wrong)} of {len(self._names)} differ, e.g. {wrong[0]}: "
                f"expected {self._names.get(wrong[0], 'nothing')}, got {found.get(wrong[0], 'nothing')}"
            )
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False
        self._load(given)
        self.version = version

    def sleep(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigurationError("vLLM cannot let its memory go on the CPU; raise cluster.memory_mib")
        if self._rows:
            raise ConfigurationError(f"{len(self._rows)} requests are under way; abort them first")
        self._engine.sleep(level=2)
        self._asleep = True

    def abort(self, ids: Iterable[int] | None = None) -> None:
        chosen = None if ids is None else set(ids)
        rows = [row for row in self._rows.values() if chosen is None or row.request.id in chosen]
        self._engine.abort_request([row.key for row in rows])
        for row in rows:
            self._finish(row, Finish.ABORTED)
        self._hand_on()

    def _advance(self) -> None:
        for output in self._engine.step():
            self._take(output)

    def _check(self, requests: list[Request]) -> None:
        known = [row.request.id for row in self._rows.values()]
        check_requests(requests, known, capacity=self._capacity, decodes=self._tokenizer is not None)
        for request in requests:
            sampling = request.sampling
            if sampling.decode == "greedy" and sampling.temperature != 1:
                raise ConfigurationError(
                    f"request {request.id} decodes greedily at temperature {sampling.temperature}; the engine vllm has "
                    "log-probabilities of greedy tokens at temperature 1 only"
                )

    def _add(self, request: Request, stream: collections.deque[Response]) -> None:
        begun = request.begun
        kept: tuple[list[int], list[float], list[int]] = ([], [], [])
        if begun is not None:
            kept = (begun.tokens.tolist(), begun.logprobs.tolist(), begun.versions.tolist())
        self._made += 1
        row = _Row(str(self._made), request, stream, *kept)
        self._rows[row.key] = row
        prompt = {"prompt_token_ids": [*request.prompt, *row.tokens]}
        self._engine.add_request(row.key, prompt, self._sampling(request, len(row.tokens)))

    def _sampling(self, request: Request, kept: int) -> Any:
        """vLLM's own record of how to draw. kept: tokens the response has already."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling: Sampling = request.sampling
        return SamplingParams(
            temperature=0.0 if sampling.decode == "greedy" else sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=sampling.top_p,
            seed=derive_seed(request.seed, "vllm", kept),
            max_tokens=sampling.max_new_tokens - kept,
            logprobs=0,  # of the token that was drawn, and of no other
            stop=list(sampling.stop) or None,
            stop_token_ids=self._eos,
            ignore_eos=True,  # what ends a response is `eos`, not the model's own configuration
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.DELTA,
        )

    def _take(self, output: Any) -> None:
        """What one step drew for one request."""
        row = self._rows.get(output.request_id)
        if row is None:  # aborted while the step ran
            return
        (drawn,) = output.outputs
        for token, described in zip(drawn.token_ids, drawn.logprobs or (), strict=True):
            logprob = described[token].logprob
            if logprob != logprob:  # NaN
                raise CorrectnessAlarm(
                    f"the model's logits are not finite at token {len(row.tokens)} of request {row.request.id}: its "
                    "weights, or an activation, overflowed. Look at the last update; try dtype float32."
                )
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
        if output.finished:
            self._finish(row, self._reason(row, drawn.finish_reason))

    def _reason(self, row: _Row, said: str | None) -> Finish:
        if said == "length":
            return Finish.LENGTH
        if said != "stop":
            raise CorrectnessAlarm(
                f"vLLM ended request {row.request.id} for the reason {said!r}; nobody asked for that"
            )
        return Finish.EOS if row.tokens[-1] in self._eos else Finish.STOP

    def _finish(self, row: _Row, finish: Finish) -> None:
        del self._rows[row.key]
        row.stream.append(
            Response(
                request=row.request,
                tokens=torch.tensor(row.tokens, dtype=torch.int64),
                logprobs=torch.tensor(row.logprobs, dtype=torch.float32),
                versions=torch.tensor(row.versions, dtype=torch.int64),
                finish=finish,
            )
        )

    def _load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Fill vLLM's model, and let it work out anew what is under way."""
        if self._untied:
            weights = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": published_names(weights)})
        self._engine.reset_prefix_cache(reset_running_requests=True)


def _weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    tied = bool(model.config.tie_word_embeddings)
    return {name: v for name, v in model.state_dict().items() if not (tied and name == "lm_head.weight")}


def _options(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    slots: int,
    capacity: int,
    dtype: torch.dtype,
    cache_bytes: int,
    eager: bool,
) -> dict[str, Any]:
    """Arguments of vLLM's EngineArgs, but for the folder of the model."""
    return {
        "skip_tokenizer_init": tokenizer is None,
        "load_format": "dummy",  # weights come by `update_weights`
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": capacity,
        "max_num_seqs": slots,
        "kv_cache_memory_bytes": cache_bytes,
        "logprobs_mode": "processed_logprobs",  # of the distribution drawn from
        "generation_config": "vllm",  # no sampling options but ours
        "async_scheduling": False,  # a step's tokens are those of its own weights
        "enforce_eager": eager,
        "enable_sleep_mode": torch.cuda.is_available(),
        "disable_log_stats": True,
    }


def _start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    options: Mapping[str, Any],
    device: torch.device,
    *,
    untied: bool,
) -> Any:
    """vLLM's engine with weights that mean nothing yet. untied: with an output matrix of its own."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else the CPU build moves its model into another process
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

    with tempfile.TemporaryDirectory() as folder:
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__.removeprefix("FSDP")]
        config.tie_word_embeddings = config.tie_word_embeddings and not untied
        config.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        made = EngineArgs(model=folder, **options).create_engine_config()
        if made.device_config.device_type != device.type:
            raise ConfigurationError(
                f"generation is to be on {device}, but the vLLM that is installed is built for "
                f"{made.device_config.device_type}"
            )
        made.device_config.device = device
        return LLMEngine(
            vllm_config=made, executor_class=Executor.get_class(made), log_stats=False, multiprocess_mode=False
        )
