"""Models and tokenizers by folder or hub id, by `transformers`; code that comes with a model is never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import safetensors
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from embodied.errors import AssetError
from reasoning.models.cpu_linear import use_onednn
from reasoning.models.places import Place, locate
from reasoning.models.tiny import TINY, tiny_config, tiny_model, tiny_tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_TOKENIZERS = ("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")
_REASON = 300  # characters of another library's message


def without_progress_bars() -> None:
    """Keep transformers from drawing bars for files that take a moment; for commands, which have their own output."""
    transformers_logging.disable_progress_bar()


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model. Raises AssetError when there is none."""
    place = locate(source)
    if place.folder is not None and not any(any(place.folder.glob(name)) for name in _TOKENIZERS):
        raise AssetError(f"{place.folder} has no tokenizer; expected one of {', '.join(_TOKENIZERS)} in it")
    return _load(AutoTokenizer, source, place)


def load_model(source: str, *, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A causal language model in eval mode.

    Raises AssetError when it cannot be loaded, lacks weights, or has some that are not finite.
    """
    model, found = _load(AutoModelForCausalLM, source, locate(source), dtype=dtype, output_loading_info=True)
    missing = sorted(found["missing_keys"])
    if missing:  # transformers would draw them at random
        raise AssetError(f"the model {source!r} lacks {len(missing)} of its weights, e.g. {missing[0]}; copy it again")
    model = model.to(device).eval()
    for name, tensor in model.named_parameters():
        if not tensor.untyped_storage().resizable():  # still the file itself, mapped: such memory cannot be given back
            tensor.data = tensor.data.clone()
        if not bool(torch.isfinite(tensor.detach().sum(dtype=torch.float32))):
            raise AssetError(f"the model {source!r} cannot be used: its weights {name} are not finite")
    return model


def check_model(source: str) -> PretrainedConfig:
    """The configuration of the model that `open_model` would open. Weights are not read, but their files are looked at.

    Raises AssetError when it cannot be loaded.
    """
    if source == TINY:
        return tiny_config(tiny_tokenizer())
    place = locate(source)
    options = _load(AutoConfig, source, place)
    if place.folder is not None:
        files = sorted(place.folder.glob("*.safetensors"))
        if not files and not any(place.folder.glob("*.bin")):
            raise AssetError(f"{place.folder} has no weights; expected *.safetensors in it, as save_pretrained writes")
        for file in files:
            try:
                with safetensors.safe_open(file, "pt"):
                    pass
            except (OSError, SafetensorError) as error:
                raise AssetError(f"{file} is damaged ({error}); copy it again, or use another model") from None
    return options


def _load(kind: Any, source: str, place: Place, **options: Any) -> Any:
    try:
        return kind.from_pretrained(place.name, trust_remote_code=False, local_files_only=place.local, **options)
    except Exception as error:  # tokenizers raises nothing more special for a damaged file
        reason = " ".join(str(error).split())[:_REASON] or type(error).__name__
        raise AssetError(
            f"no model can be loaded from {source!r}: {reason.rstrip('.')}. Give a folder as written by "
            "save_pretrained, or a hub id when there is a network."
        ) from None


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
