"""Nested training state on disk without pickle: tensors in safetensors, everything else in JSON.

State is built of dicts with string keys, lists, tensors, numbers, strings, booleans and None; what is read back equals
what was written, to the bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from embodied.errors import CheckpointError

_TENSOR = "__tensor__"


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path`.json and `path`.safetensors.

    Raises CheckpointError for a value of another kind, naming where it is, and where the files cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    structure = _take_tensors(state, "", tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(tensors, path.with_suffix(".safetensors"))
        path.with_suffix(".json").write_text(json.dumps(structure))
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} could not be written: {error}.") from error


def keep_evidence(path: Path, state: dict[str, Any]) -> str:
    """Write what led to an alarm, and return the sentence that says where; a full disk must not hide the alarm."""
    try:
        write_state(path, state)
    except CheckpointError as error:
        return f"The batch could not be kept: {error}"
    return f"The batch is saved as {path}.safetensors."


def on_host(state: Any) -> Any:
    """A copy of `state` in the memory of the CPU, which stays as it is whatever becomes of the original's tensors."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: on_host(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [on_host(value) for value in state]
    return state


def read_state(path: Path) -> dict[str, Any]:
    """The inverse of `write_state`. Raises CheckpointError when the files are missing or damaged."""
    try:
        structure = json.loads(path.with_suffix(".json").read_text())
        tensors = safetensors.torch.load_file(path.with_suffix(".safetensors"))
        return _put_tensors(structure, tensors)
    except (OSError, KeyError, json.JSONDecodeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable state: {type(error).__name__}: {error}") from error


def _take_tensors(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        # clone: safetensors refuses tensors that share memory
        tensors[where] = value.detach().cpu().contiguous().clone()
        return {_TENSOR: where}
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise CheckpointError(f"state{where}: dict keys must be strings, got {wrong[:3]}")
        return {key: _take_tensors(item, f"{where}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, f"{where}/{i}", tensors) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"state{where} is a {type(value).__name__}; expected tensors, numbers, strings, lists, dicts")


def _put_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_tensors(item, tensors) for item in value]
    return value
