"""Which engine generates, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import torch

from embodied.config import config
from reasoning.generation.api import Engine
from reasoning.generation.native import NativeEngine
from reasoning.generation.vllm import VllmEngine, require_vllm

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@config
class EngineConfig:
    """kind: `native` is ours; `vllm` needs the optional extra of that name.
    vllm_cache_gib: memory of vLLM for keys and values. vllm_eager: vLLM without torch.compile and CUDA graphs, which
    start faster and run slower.
    """

    kind: Literal["native", "vllm"] = "native"
    vllm_cache_gib: float = 4.0
    vllm_eager: bool = False

    def __post_init__(self) -> None:
        if self.vllm_cache_gib <= 0:
            raise ValueError(f"vllm_cache_gib is {self.vllm_cache_gib}; it must be above 0")


class EngineArguments(TypedDict):
    """What every engine is made from, besides the model; NativeEngine explains them."""

    eos: Iterable[int]
    tokenizer: PreTrainedTokenizerBase | None
    slots: int
    capacity: int
    dtype: torch.dtype
    device: str
    version: int
    timed: Callable[[], AbstractContextManager[None]]


def require_engine(options: EngineConfig) -> None:
    """Raise ConfigurationError when the engine that `options` name is not installed here."""
    if options.kind == "vllm":
        require_vllm()


def open_engine(options: EngineConfig, model: PreTrainedModel, **arguments: Unpack[EngineArguments]) -> Engine:
    """The engine that `options` name.

    Raises ConfigurationError when it is not installed or does not serve this model.
    """
    if options.kind == "native":
        return NativeEngine(model, **arguments)
    return VllmEngine(model, cache_gib=options.vllm_cache_gib, eager=options.vllm_eager, **arguments)
