"""One recorded episode: what was seen, what was done, what should have been done, and how it went."""

from __future__ import annotations

import dataclasses

import torch

from embodied.errors import AssetError
from envs.api import EnvSpec


@dataclasses.dataclass(frozen=True)
class Episode:
    """T control steps; row t holds what was seen before action t and what that action led to.

    state: float32 [T, S]. privileged: float32 [T, P], what only the simulator knows, or None.
    images: uint8 [T, V, H, W, 3], or None where there are no cameras.
    actions: float32 [T, A] as executed. labels: float32 [T, A] as they should have been, which is what is imitated;
        the two differ where a recording disturbs its expert on purpose.
    rewards: float32 [T]. success: bool [T].
    instruction: the task in words. assignment: (task, initial state, seed) it was reset to; -1 where unknown.
    """

    state: torch.Tensor
    actions: torch.Tensor
    labels: torch.Tensor
    rewards: torch.Tensor
    success: torch.Tensor
    images: torch.Tensor | None = None
    privileged: torch.Tensor | None = None
    instruction: str = ""
    assignment: tuple[int, int, int] = (-1, -1, -1)

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def succeeded(self) -> bool:
        """Whether any step was successful."""
        return bool(self.success.any())

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors there are, by field name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}


def check_episode(episode: Episode, spec: EnvSpec, where: str) -> None:
    """Raise AssetError, naming `where`, unless the episode has the types and sizes that `spec` calls for."""
    steps, actions = len(episode.actions), spec.action.dim
    cameras = spec.cameras
    picture = (steps, len(cameras), cameras[0].height, cameras[0].width, 3) if cameras else None
    expected: dict[str, tuple[torch.dtype, tuple[int, ...] | None]] = {
        "state": (torch.float32, (steps, spec.state_dim)),
        "actions": (torch.float32, (steps, actions)),
        "labels": (torch.float32, (steps, actions)),
        "rewards": (torch.float32, (steps,)),
        "success": (torch.bool, (steps,)),
        "images": (torch.uint8, picture),
        "privileged": (torch.float32, (steps, spec.privileged_dim) if spec.privileged_dim else None),
    }
    tensors = episode.tensors()
    faults = ["it has no steps"] if not steps else []
    for name, (dtype, shape) in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            faults += [f"{name} is missing, expected {dtype} {list(shape)}"] if shape is not None else []
        elif shape is None:
            faults.append(f"{name} is {list(tensor.shape)}, expected none")
        elif tensor.dtype != dtype or tuple(tensor.shape) != shape:
            faults.append(f"{name} is {tensor.dtype} {list(tensor.shape)}, expected {dtype} {list(shape)}")
        elif tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            faults.append(f"{name} holds numbers that are not finite")
    if faults:
        raise AssetError(f"{where} is no episode of {spec.id}: {'; '.join(faults)}.")
