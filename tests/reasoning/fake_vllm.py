"""A stand-in for the parts of vLLM that the engine calls, so that the contract is tested where vLLM is not installed.

It knows no more names than vLLM 0.32 has, runs a transformers model over whole sequences, and draws one token of every
request a step.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.machinery
import sys
import types
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from reasoning.generation.api import Sampling
from reasoning.generation.sampling import token_logprobs


class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclasses.dataclass
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE


@dataclasses.dataclass
class EngineArgs:
    model: str
    skip_tokenizer_init: bool = False
    load_format: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_cache_memory_bytes: int | None = None
    logprobs_mode: str = "raw_logprobs"
    generation_config: str = "auto"
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    enable_sleep_mode: bool = False
    disable_log_stats: bool = False

    def create_engine_config(self) -> types.SimpleNamespace:
        assert self.load_format == "dummy"
        assert self.logprobs_mode == "processed_logprobs"
        device = types.SimpleNamespace(device_type="cpu", device=torch.device("cpu"))
        tokenizer = None if self.skip_tokenizer_init else AutoTokenizer.from_pretrained(self.model)
        config = AutoConfig.from_pretrained(self.model)
        return types.SimpleNamespace(args=self, device_config=device, config=config, tokenizer=tokenizer)


class Executor:
    @staticmethod
    def get_class(config: Any) -> type:
        return Executor


@dataclasses.dataclass
class _Running:
    key: str
    tokens: list[int]
    params: SamplingParams
    generator: torch.Generator
    drawn: list[int] = dataclasses.field(default_factory=list)


class LLMEngine:
    def __init__(self, *, vllm_config: Any, executor_class: type, log_stats: bool, multiprocess_mode: bool) -> None:
        assert not multiprocess_mode
        self.config = vllm_config
        with torch.random.fork_rng():
            self.model = AutoModelForCausalLM.from_config(vllm_config.config).eval()
        self.running: list[_Running] = []
        self.fresh = False  # whether what was worked out with older weights was dropped

    def collective_rpc(self, method: str, timeout: Any = None, args: tuple = (), kwargs: Any = None) -> list[Any]:
        assert method == "reload_weights"
        state = dict(kwargs["weights_iterator"])
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}
        self.model.tie_weights()
        self.fresh = False
        return [None]

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        self.fresh = reset_running_requests
        return True

    def add_request(self, request_id: str, prompt: dict[str, list[int]], params: SamplingParams) -> str:
        assert all(running.key != request_id for running in self.running)
        generator = torch.Generator().manual_seed(params.seed)
        self.running.append(_Running(request_id, list(prompt["prompt_token_ids"]), params, generator))
        return request_id

    def abort_request(self, request_ids: list[str]) -> None:
        self.running = [running for running in self.running if running.key not in request_ids]

    @torch.no_grad()
    def step(self) -> list[Any]:
        assert self.fresh, "weights changed, but not the caches"
        outputs = []
        for running in self.running[: self.config.args.max_num_seqs]:
            params = running.params
            logits = self.model(torch.tensor([running.tokens])).logits[0, -1]
            temperature = params.temperature or 1.0
            sampling = Sampling(temperature=temperature, top_k=params.top_k or None, top_p=params.top_p)
            logprobs = token_logprobs(logits.expand(len(logits), -1), torch.arange(len(logits)), sampling)
            greedy = params.temperature == 0
            drawn = logprobs.argmax() if greedy else logprobs.exp().multinomial(1, generator=running.generator)[0]
            token = int(drawn)
            running.tokens.append(token)
            running.drawn.append(token)
            reason = self._reason(running, token)
            described = [{token: types.SimpleNamespace(logprob=float(logprobs[token]))}]
            completion = types.SimpleNamespace(token_ids=[token], logprobs=described, finish_reason=reason)
            outputs.append(
                types.SimpleNamespace(request_id=running.key, outputs=[completion], finished=reason is not None)
            )
            if reason is not None:
                self.running.remove(running)
        return outputs

    def _reason(self, running: _Running, token: int) -> str | None:
        params = running.params
        if token in (params.stop_token_ids or []):
            return "stop"
        if params.stop and any(text in self.config.tokenizer.decode(running.drawn) for text in params.stop):
            return "stop"
        return "length" if len(running.drawn) == params.max_tokens else None


def modules() -> dict[str, types.ModuleType]:
    """What `sys.modules` has to hold."""
    content = {
        "vllm": {"SamplingParams": SamplingParams},
        "vllm.sampling_params": {"RequestOutputKind": RequestOutputKind},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.llm_engine": {"LLMEngine": LLMEngine},
        "vllm.v1.executor": {"Executor": Executor},
    }
    made = {}
    for name, names in content.items():
        made[name] = types.ModuleType(name)
        made[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        made[name].__path__ = []
        vars(made[name]).update(names)
    return made


def install(monkeypatch: Any) -> None:
    """Stand in for vLLM for one test."""
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
