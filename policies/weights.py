"""Writing tensors to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file with the permissions of any new file; the library's own let nobody but the owner read.

    Raises OSError or safetensors.SafetensorError where it cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(stored, path, metadata={"format": "pt"})
    path.chmod(mode)
