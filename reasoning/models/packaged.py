"""Pretrained models that a package of the Python index carries as a GGUF file: written out once for transformers."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

import torch

from embodied.errors import AssetError, suggest
from reasoning.models.saving import save_model
from sim_assets import find_asset, require
from sim_assets.records import Root

PACKAGED = "package:"  # and the name of such a model, where a model is asked for
_FILES = {"smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf"}


def packaged(name: str) -> Path:
    """The folder of a packaged model, in transformers' layout and float32; made on first use, which takes a minute.

    Raises AssetError when the package is not installed, saying how to get it.
    """
    if name not in _FILES:
        raise AssetError(f"no package with a model {name!r} is known. " + suggest(name, _FILES, noun="models"))
    asset = find_asset(name)
    folder = Root.CACHE.folder() / "converted" / f"{name}-{(asset.sha256 or '')[:12]}"
    if not folder.is_dir():
        (source,) = require(name)
        _convert(source / _FILES[name], folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise AssetError(
            f"{file.name} is a GGUF file, and the package that reads those is not installed: "
            "pip install 'embodied-rl[smollm2]'"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as room:
        made = Path(room) / "made"
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(made)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        del model.config.quantization_config  # says how the file was made; the weights are numbers again
        save_model(model, model.state_dict(), made)
        try:
            os.rename(made, folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
