"""The gripper's dimension: in the published data 1 is open and 0 closed, and each simulator has its own numbers."""

from __future__ import annotations

from typing import Literal

import torch

Gripper = Literal["as_is", "open_is_positive", "open_is_negative"]


def executed(actions: torch.Tensor, gripper: Gripper) -> torch.Tensor:
    """float [..., A] for the environment from actions [..., A] of the data: wholly open or wholly closed, 1 or -1."""
    if gripper == "as_is":
        return actions
    last = torch.where(actions[..., -1:] > 0.5, _open(gripper), -_open(gripper))
    return torch.cat([actions[..., :-1], last], dim=-1)


def demonstrated(actions: torch.Tensor, gripper: Gripper) -> torch.Tensor:
    """float [..., A] in the data's numbers of actions [..., A] that an environment took: what `executed` undoes."""
    if gripper == "as_is":
        return actions
    last = (actions[..., -1:] * _open(gripper) > 0).to(actions.dtype)
    return torch.cat([actions[..., :-1], last], dim=-1)


def _open(gripper: Gripper) -> float:
    return 1.0 if gripper == "open_is_positive" else -1.0
