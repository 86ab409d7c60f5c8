"""Writing tensors to a file, and what cannot be weights when they are read back."""

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


def numbers_fault(tensor: torch.Tensor, *, infinite: bool = False) -> str:
    """What is wrong with the numbers of stored weights, "" where nothing is; `infinite` ones may be meant."""
    # one sum is several times cheaper than looking at every number, and is not finite if one of them is not
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum(dtype=torch.float32))):
        return ""
    wrong = int((torch.isnan(tensor) if infinite else ~torch.isfinite(tensor)).sum())
    kind = "NaN" if infinite else "NaN or infinite"
    return f"{wrong} of {tensor.numel()} numbers are {kind}" if wrong else ""
