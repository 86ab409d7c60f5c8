"""Models and tokenizers by folder or hub id, by `transformers`; code that comes with a model is never run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from embodied.errors import AssetError, suggest
from reasoning.models.cpu_linear import use_onednn
from reasoning.models.packaged import PACKAGED, packaged
from reasoning.models.tiny import TINY, tiny_model, tiny_tokenizer
from sim_assets.trained import CHECKPOINTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


BUNDLED = "bundled:"  # and the name of a model that ships


def without_progress_bars() -> None:
    """Keep transformers from drawing bars for files that take a moment; for commands, which have their own output."""
    transformers_logging.disable_progress_bar()


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model. Raises AssetError when there is none."""
    return _load(AutoTokenizer, source)


def load_model(source: str, *, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A causal language model in eval mode. Raises AssetError when it cannot be loaded."""
    model = _load(AutoModelForCausalLM, source, dtype=dtype).to(device).eval()
    for tensor in model.parameters():
        if not tensor.untyped_storage().resizable():  # still the file itself, mapped: such memory cannot be given back
            tensor.data = tensor.data.clone()
    return model


def _load(kind: Any, source: str, **options: Any) -> Any:
    if source.startswith(BUNDLED):
        source = str(_bundled(source.removeprefix(BUNDLED)))
    elif source.startswith(PACKAGED):
        source = str(packaged(source.removeprefix(PACKAGED)))
    try:
        return kind.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()
        raise AssetError(
            f"no model can be loaded from {source!r}: {reason[0] if reason else type(error).__name__}. "
            "Give a folder as written by save_pretrained, or a hub id when there is a network."
        ) from error


def _bundled(name: str) -> Path:
    """The folder of a model that ships."""
    shipped = sorted(path.parent.name for path in CHECKPOINTS.glob("*/generation_config.json"))
    if name not in shipped:
        raise AssetError(f"no model {name!r} ships. " + suggest(name, shipped, noun="bundled models"))
    return CHECKPOINTS / name


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Token ids that end a response: those of the model's generation settings, and the tokenizer's."""
    configured = model.generation_config.eos_token_id
    found = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({token for token in [*found, tokenizer.eos_token_id] if token is not None}))


def open_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of `tiny` (a fresh model made here), or of a model that is loaded."""
    return tiny_tokenizer() if source == TINY else load_tokenizer(source)


def open_model(source: str, *, seed: int, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A model to train or to generate with: fresh weights of `seed` for `tiny`, else those that are stored."""
    if source == TINY:
        model = tiny_model(tiny_tokenizer(), seed=seed).to(device, dtype).eval()
    else:
        model = load_model(source, dtype=dtype, device=device)
    return use_onednn(model) if torch.device(device).type == "cpu" else model
