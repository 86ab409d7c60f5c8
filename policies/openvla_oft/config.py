"""Options of the OpenVLA-OFT policy."""

from __future__ import annotations

from typing import ClassVar, Literal

from embodied.config import config
from policies.vla.options import VLAConfig


@config
class OpenVLAOFTConfig(VLAConfig):
    """OpenVLA-OFT: any number of cameras, a whole chunk of actions from one pass. See `VLAConfig` for what is shared.

    head: tokens are drawn from the language model's logits; l1 regresses actions and has no distribution, so it can
        be cloned and evaluated, but not trained with policy gradients.
    state: whether the robot's state enters as one token after the pictures.
    film: whether the instruction modulates the vision transformers' blocks.
    stop: whether the stop token follows the action placeholders, as in the published training; checkpoints trained
        with reinforcement learning elsewhere may have gone without.
    placeholders: embeddings of the action placeholders: zero, as published, or learned, one for each token of a chunk,
        which a decoder of few layers needs to tell them apart.
    """

    default_chunk: ClassVar[int] = 8
    name: str = "openvla_oft/7b"
    head: Literal["tokens", "l1"] = "tokens"
    state: Literal["none", "token"] = "none"
    film: Literal["none", "language"] = "none"
    stop: Literal["append", "omit"] = "append"
    placeholders: Literal["zero", "learned"] = "zero"
