"""Options that OpenVLA and OpenVLA-OFT share."""

from __future__ import annotations

from typing import ClassVar, Literal

from embodied.config import config
from embodied.errors import suggest
from policies.api import PolicyConfig
from policies.names import split_name
from policies.vla.architecture import NetworkSizes
from policies.vla.attention import Kernel
from policies.vla.bundle import PRESETS
from policies.vla.gripper import Gripper
from policies.vla.images import ImageOptions


@config
class LoraOptions:
    """Low-rank adapters (Hu et al. 2021) on the decoder's linear layers, or also on vision and projector.

    alpha: scale is alpha / rank; None takes min(rank, 16) as the published fine-tuning recipes do.
    """

    rank: int = 32
    alpha: int | None = None
    dropout: float = 0.0
    targets: Literal["language", "language_and_vision"] = "language"

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 <= self.dropout < 1:
            raise ValueError(f"rank is {self.rank} and dropout {self.dropout}; expected rank >= 1, 0 <= dropout < 1")
        if self.alpha is not None and self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}; expected at least 1: adapters of scale 0 learn nothing")


@config
class VLAConfig(PolicyConfig):
    """What a vision-language-action policy may be told.

    name: `<kind>/tiny` or `<kind>/7b`, also with dashes (`openvla-oft-7b`).
    checkpoint: folder or hub id in the published layout that gives sizes, weights, tokenizer and statistics; None
        draws fresh weights of the preset's size.
    sizes: of fresh `tiny` weights, other than the preset's; a checkpoint has its own.
    statistics: key of the checkpoint's action statistics; None takes the only one.
    views: how many of the environment's cameras are looked at, the first ones; None takes what the published policy
        does: one for OpenVLA, all for OpenVLA-OFT.
    prompt: template of the checkpoint's training.
    prompt_tokens: columns of a tokenised prompt; None fits the environment's longest instruction.
    image: steps before the processor's resize.
    gripper: the last action dimension as it comes (as_is), or, where the data has 1 for open and 0 for closed, as a
        sign: open is +1 (ManiSkill) or -1 (LIBERO).
    precision: type of the weights.
    compute: what acting and evaluating compute in: the weights' type (weights), or bfloat16 whatever that is, as a
        learner of `learner.precision=bfloat16` does with float32 weights.
    attention: the decoder's kernel on CUDA: torch's (sdpa), or flash-attention's package (flash; bfloat16 only). On a
        CPU both are torch's.
    recompute: keep activations of the decoder for the backward pass, or only each layer's input.
    critic: what the value head looks at: the decoder's last prompt token (prompt), or what only the simulator knows and
        acting does without (privileged).
    lora: adapters; None trains all weights.
    """

    resizes: ClassVar[bool] = True

    checkpoint: str | None = None
    sizes: NetworkSizes | None = None
    statistics: str | None = None
    views: int | None = None
    prompt: Literal["openvla", "openvla_v01"] = "openvla"
    prompt_tokens: int | None = None
    image: ImageOptions = ImageOptions()
    gripper: Gripper = "as_is"
    precision: Literal["float32", "bfloat16"] = "float32"
    compute: Literal["weights", "bfloat16"] = "weights"
    attention: Kernel = "sdpa"
    recompute: Literal["nothing", "layers"] = "nothing"
    critic: Literal["prompt", "privileged"] = "prompt"
    lora: LoraOptions | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, preset = split_name(self.name)
        if preset not in PRESETS:
            raise ValueError(f"name is {self.name!r}. " + suggest(self.name, [f"{kind}/{p}" for p in PRESETS]))
        if self.sizes is not None and (self.checkpoint is not None or preset != "tiny"):
            raise ValueError("sizes are of fresh weights of the preset tiny; leave them out with a checkpoint or 7b")
        if self.views is not None and self.views < 1:
            raise ValueError(f"views is {self.views}; expected at least 1")

    @property
    def preset(self) -> str:
        """The part of the name after the kind."""
        return split_name(self.name)[1]
