"""Which engine generates, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal

import torch

from embodied.config import config
from reasoning.generation.api import Engine
from reasoning.generation.native import NativeEngine

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


def open_engine(
    options: EngineConfig,
    model: PreTrainedModel,
    *,
    eos: Iterable[int],
    tokenizer: PreTrainedTokenizerBase | None,
    slots: int,
    capacity: int,
    dtype: torch.dtype,
    device: str,
    version: int,
    timed: Callable[[], AbstractContextManager[None]],
) -> Engine:
    """The engine that `options` name; see NativeEngine for the arguments.

    Raises ConfigurationError when it is not installed or does not serve this model.
    """
    if options.kind == "native":
        return NativeEngine(
            model,
            eos=eos,
            tokenizer=tokenizer,
            slots=slots,
            capacity=capacity,
            dtype=dtype,
            device=device,
            version=version,
            timed=timed,
        )
    from reasoning.generation.vllm import VllmEngine

    return VllmEngine(
        model,
        eos=eos,
        tokenizer=tokenizer,
        slots=slots,
        capacity=capacity,
        dtype=dtype,
        device=device,
        version=version,
        cache_gib=options.vllm_cache_gib,
        eager=options.vllm_eager,
        timed=timed,
    )
