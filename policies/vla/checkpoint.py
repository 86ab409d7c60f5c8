"""Reading and writing policies in the published Hugging Face layout, without remote code and without pickle.

A folder holds `config.json`, safetensors (one file or shards with an index), `dataset_statistics.json`, the processor's
files, and, for OpenVLA-OFT, component files `<name>--<step or latest>_checkpoint.pt`, which are read with torch's
weights-only unpickler.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import safetensors
import torch
from torch import nn

from embodied.errors import AssetError, CheckpointError
from policies.weights import numbers_fault, save_tensors
from sim_assets.trained import bundled_checkpoint, bundled_checkpoints

CONFIG = "config.json"
STATISTICS = "dataset_statistics.json"
PREPROCESSOR = "preprocessor_config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
COMPANIONS = (
    "added_tokens.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "tokenizer_config.json",
)
"""Files of a checkpoint that are neither read nor changed here, yet belong to the layout: carried from load to save."""

_SHARD_BYTES = 5_000_000_000


def find_here(source: str) -> Path | None:
    """As `resolve`, without asking the hub: None where only that can tell."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    bundled = bundled_checkpoint(source)
    if bundled is None and not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise AssetError(
            f"{source!r} is neither an existing folder, nor a hub id of the form owner/name, nor a checkpoint that "
            f"ships ({', '.join(bundled_checkpoints()) or 'none'})."
        )
    return bundled


def resolve(source: str) -> Path:
    """The local folder of `source`: itself if it is one, a checkpoint that ships by its name, else a hub repository's
    snapshot.

    Raises AssetError where it is none of these, or cannot be reached.
    """
    here = find_here(source)
    if here is not None:
        return here
    patterns = ["*.json", "*.safetensors", "*_checkpoint.pt", "tokenizer.model"]
    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=patterns))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise AssetError(
            f"{source!r} is no folder here and could not be fetched from the hub ({type(error).__name__}: {error}). "
            "Give the path of a downloaded checkpoint, or check the id and the network."
        ) from error


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in `folder/name`. Raises CheckpointError where it is missing or no valid JSON."""
    path = folder / name
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {name}; it is no policy in the published layout.") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds a {type(values).__name__}; expected a JSON object.")
    return values


def read_optional_json(folder: Path, name: str) -> dict[str, Any]:
    """As `read_json`, but empty where the file is missing."""
    return read_json(folder, name) if (folder / name).is_file() else {}


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        shards = read_json(folder, INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"{folder / INDEX} has no `weight_map` from tensors to files; download it again.")
        names = sorted(set(shards.values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(f"{folder} lacks the shards {missing} that {INDEX} names; download them again.")
        return [folder / name for name in names]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}; only safetensors are read.")


def load_weights(module: nn.Module, folder: Path, rename: Mapping[str, str] | None = None) -> None:
    """Copy a folder's safetensors into `module`, one tensor at a time, casting to its parameters' type.

    rename: checkpoint name -> name in `module`, where they differ. Raises CheckpointError listing missing, unexpected
    and wrongly shaped tensors.
    """
    targets = module.state_dict()
    rename = rename or {}
    seen: set[str] = set()
    faults: list[str] = []
    for path in _weight_files(folder):
        try:
            with safetensors.safe_open(path, "pt") as file:
                for stored in file.keys():  # noqa: SIM118 (not a dict)
                    name = rename.get(stored, stored)
                    if name not in targets:
                        faults.append(f"unexpected {stored}")
                        continue
                    if name in seen:
                        faults.append(f"{stored} twice")
                    seen.add(name)
                    _copy(targets[name], file.get_tensor(stored), stored, faults)
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"{path} is not a readable safetensors file: {error}.") from error
    faults += [f"missing {name}" for name in targets if name not in seen]
    _raise(faults, folder)


def load_component(module: nn.Module, path: Path, prefix: str = "") -> None:
    """Copy a component file, whose names carry `prefix`, into `module`. Raises CheckpointError on a misfit."""
    targets = module.state_dict()
    faults: list[str] = []
    state = {name.removeprefix(prefix): tensor for name, tensor in merge_lora(read_component(path)).items()}
    for name, tensor in state.items():
        if name in targets:
            _copy(targets[name], tensor, name, faults)
        else:
            faults.append(f"unexpected {name}")
    faults += [f"missing {name}" for name in targets if name not in state]
    _raise(faults, path)


def read_component(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a `.pt` component file by name, without the prefix that data-parallel training leaves on them.

    Raises CheckpointError where it holds anything but tensors.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the restricted unpickler fails in any way on bytes that are no pickle
        # torch's own message goes on to explain how to run the file's code after all
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} is not a file of tensors alone, and nothing else is ever loaded ({why}). Download it again, or "
            "convert it to tensors where it comes from."
        ) from None
    named = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    if not named or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{path} does not hold a dictionary of tensors by name.")
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


def find_component(folder: Path, name: str) -> Path | None:
    """The newest component file `name` of a folder: `latest` if there is one, else the highest step; None if none."""
    found = {}
    for path in folder.glob(f"{name}--*_checkpoint.pt"):
        step = path.name.removeprefix(f"{name}--").removesuffix("_checkpoint.pt")
        found[float("inf") if step == "latest" else int(step) if step.isdigit() else -1] = path
    return found[max(found)] if found else None


def write_component(state: Mapping[str, torch.Tensor], folder: Path, name: str) -> None:
    """Write a component file under the names the published loader reads."""
    tensors = {f"module.{key}": value.detach().cpu().contiguous() for key, value in state.items()}
    buffer = io.BytesIO()  # torch hides a full disk's OSError behind a RuntimeError; writing ourselves does not
    torch.save(tensors, buffer)
    (folder / f"{name}--latest_checkpoint.pt").write_bytes(buffer.getbuffer())


def merge_lora(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fold adapters that a component file still carries into their base weights.

    Published FiLM files are written before merging; their recipe's alpha is min(rank, 16). Raises CheckpointError for
    half an adapter.
    """
    merged = {}
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        down = state.get(name.replace(".base_layer.weight", ".lora_A.default.weight"))
        if name.endswith(".base_layer.weight") and down is not None:
            up = state.get(name.replace(".base_layer.weight", ".lora_B.default.weight"))
            if up is None or up.shape[-1] != down.shape[0] or (len(up), down.shape[-1]) != tuple(tensor.shape):
                raise CheckpointError(f"The adapter of {plain} has no second half, or one of another size.")
            scale = min(down.shape[0], 16) / down.shape[0]
            tensor = (tensor.float() + scale * (up.float() @ down.float())).to(tensor.dtype)
        merged[plain] = tensor
    return merged


def _copy(target: torch.Tensor, tensor: torch.Tensor, name: str, faults: list[str]) -> None:
    if target.shape != tensor.shape:
        faults.append(f"{name} is {list(tensor.shape)}, expected {list(target.shape)}")
    elif not tensor.is_floating_point():
        faults.append(f"{name} is {tensor.dtype}, expected {target.dtype}")
    elif fault := numbers_fault(tensor):
        faults.append(f"in {name} {fault}")
    else:
        target.copy_(tensor)


def _raise(faults: list[str], where: Path) -> None:
    if faults:
        shown = "; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise CheckpointError(f"The weights in {where} do not fit the policy: {shown}.")


def write_weights(tensors: Iterable[tuple[str, torch.Tensor]], folder: Path, shard_bytes: int = _SHARD_BYTES) -> None:
    """Write safetensors, sharded with an index where they exceed `shard_bytes`."""
    shards: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors:
        tensor = tensor.detach().cpu().contiguous()
        size = tensor.numel() * tensor.element_size()
        if shards[-1] and filled + size > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += size
    if len(shards) == 1:
        save_tensors(shards[0], folder / WEIGHTS)
        return
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_tensors(shard, folder / file_name)
        index |= dict.fromkeys(shard, file_name)
    total = sum(t.numel() * t.element_size() for shard in shards for t in shard.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
    (folder / INDEX).write_text(text + "\n")


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """`value` as the bytes of a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()


def write_json(value: Mapping[str, Any], folder: Path, name: str) -> None:
    """Write a JSON file the way the published folders have theirs."""
    (folder / name).write_bytes(json_bytes(value))
