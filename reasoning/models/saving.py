"""Writing a model in transformers' layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors
import torch
from huggingface_hub import save_torch_state_dict

from embodied.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def save_model(model: PreTrainedModel, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write `weights`, by the names of the model's state, so that `load_model(folder)` finds them.

    transformers' own `save_pretrained` writes nothing where the process is not rank 0 of the default process group, and
    rank 0 of the learner need not be that. Raises CheckpointError where the files cannot be written.
    """
    kept = {name: tensor for name, tensor in weights.items() if name not in model.all_tied_weights_keys}
    kept = dict(published_names(kept))
    # gathered tensors can be views of one buffer, which the writer takes for tied weights
    kept = {n: t if t.untyped_storage().nbytes() == t.nbytes else t.clone() for n, t in kept.items()}
    model.config.architectures = [type(model).__name__.removeprefix("FSDP")]  # sharding gives the class another name
    model.config.dtype = next(iter(kept.values())).dtype
    try:
        model.config.save_pretrained(folder)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        save_torch_state_dict(kept, folder)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"the model could not be written to {folder}: {error}.") from error


def published_names(weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights by the names that checkpoints are published with, which other programs read.

    transformers holds all experts of a layer in two tensors; published checkpoints have three matrices an expert.
    """
    for name, value in weights.items():
        value = value.detach()
        layer, found, kind = name.partition(".mlp.experts.")
        if not found:
            yield name, value
            continue
        for expert, matrix in enumerate(value):
            at = f"{layer}.mlp.experts.{expert}"
            if kind == "down_proj":
                yield f"{at}.down_proj.weight", matrix
            else:
                gate, up = matrix.chunk(2)
                yield f"{at}.gate_proj.weight", gate
                yield f"{at}.up_proj.weight", up
