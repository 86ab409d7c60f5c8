"""What OpenVLA and OpenVLA-OFT policies have in common: inputs, action scaling, value head, adapters, saving.

A subclass says how hidden states of action tokens come about (one after another, or all at once).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import safetensors.torch
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import nn

from embodied.errors import CheckpointError, ConfigurationError
from policies import distributions
from policies.api import Imitation, Interface, Observed, Policy, PolicySpec, Sampling
from policies.vla import gripper, lora, statistics
from policies.vla.action_tokens import ActionTokenizer
from policies.vla.attention import require_flash
from policies.vla.bundle import Bundle
from policies.vla.images import ImageProcessor, Normaliser
from policies.vla.network import OpenVLAModel, positions_of, splice
from policies.vla.options import VLAConfig
from policies.vla.prompt import PromptEncoder, Template
from policies.vla.value_head import PrivilegedCritic, ValueHead
from policies.weights import numbers_fault

P, R = ParamSpec("P"), TypeVar("R")

VALUE_HEAD = "value_head.safetensors"
ENVIRONMENT = "environment"  # statistics key of a policy that starts from the environment's action bounds
_DEFAULT_PROMPT_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Context:
    """A batch of prompts with pictures, embedded.

    embeddings [B, S, D]. valid: bool [B, S], False on padding, or None
    where there is none. counts: int64 [B or 1], valid positions.
    """

    embeddings: torch.Tensor
    valid: torch.Tensor | None
    counts: torch.Tensor

    def extend(self, tail: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Embeddings, validity and positions after appending `tail` [B, n, D] that is no padding."""
        embeddings = torch.cat([self.embeddings, tail.to(self.embeddings.dtype)], dim=1)
        if self.valid is None:
            return embeddings, None, torch.arange(embeddings.shape[1], device=tail.device)[None]
        valid = torch.cat([self.valid, self.valid.new_ones(tail.shape[:2])], dim=1)
        return embeddings, valid, positions_of(valid)


def as_chosen(method: Callable[P, R]) -> Callable[P, R]:
    """A policy's method that computes in what `policy.compute` says; an autocast around it is left as it is."""

    @functools.wraps(method)
    def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
        policy = args[0]
        assert isinstance(policy, VLAPolicy)
        if policy.options.compute == "weights":
            return method(*args, **kwargs)
        # without gradients the copies of weights would be kept until the end for nothing
        keep = torch.is_grad_enabled()
        with torch.autocast(policy.device.type, torch.bfloat16, cache_enabled=keep):
            return method(*args, **kwargs)

    return chosen


class VLAPolicy(Policy):
    """Base of the two policies; `model` holds published parameters, heads of ours stand beside it."""

    kind: str
    default_views: int | None  # None: every camera there is
    range_guard: statistics.RangeGuard

    def __init__(self, options: VLAConfig, interface: Interface, bundle: Bundle, model: OpenVLAModel) -> None:
        super().__init__()
        if interface.action_kind != "continuous":
            raise ConfigurationError(
                f"policy {options.name} emits continuous actions; the environment takes one of {interface.choices} "
                "choices. Use policy mlp or cnn."
            )
        if not interface.cameras:
            raise ConfigurationError(f"policy {options.name} needs a camera, but the environment shows no pictures.")
        self.views = options.views or self.default_views or interface.cameras
        if self.views > interface.cameras:
            raise ConfigurationError(
                f"policy.views is {self.views}, but the environment has {interface.cameras} cameras; use at most those."
            )
        self.options, self.interface, self.bundle = options, interface, bundle
        self.model = model
        architecture = model.architecture
        chunk = options.actions
        values = {"none": 0, "chunk": 1, "action": chunk}[options.value]
        self.spec = PolicySpec(options.name, chunk, interface.action_dim, interface.action_dim, values)
        if values and options.critic == "privileged":
            if not interface.privileged_dim:
                raise ConfigurationError(
                    "policy.critic: privileged needs numbers that only the simulator knows, and this environment shows "
                    "none (ManiSkill does with env.obs=rgb). Use policy.critic=prompt."
                )
            self.value_head: nn.Module = PrivilegedCritic(interface.privileged_dim, values)
        elif values:
            self.value_head = ValueHead(architecture.llama.hidden_size, values)
        self.tokens = ActionTokenizer(architecture.vocab_end, architecture.bins)
        settings = bundle.preprocessor
        self.normaliser = Normaliser.from_preprocessor(settings, architecture.timm_ids)
        fill = settings.get("tvf_letterbox_fill") or (127, 127, 127)
        strategy = bundle.config.get("image_resize_strategy", "resize-naive")
        self.pictures = ImageProcessor(architecture.image_size, options.image, strategy, tuple(fill))
        self.prompts = PromptEncoder(
            bundle.tokenizer, Template(options.prompt), architecture.pad_token, _DEFAULT_PROMPT_TOKENS
        )
        named = [text for text in interface.instructions if text]
        if options.prompt_tokens is not None:
            self.prompts.length = options.prompt_tokens
            self.prompts(named)  # refused now where one does not fit, instead of when it is first seen
        elif named:
            self.prompts.length = self.prompts.longest(interface.instructions)
        if options.attention == "flash":
            require_flash(options.precision)
        model.language_model.model.kernel = options.attention
        model.language_model.model.recompute = options.recompute == "layers"
        self._use_statistics()

    # -- statistics ---------------------------------------------------------------------------------------------

    def _use_statistics(self) -> None:
        stored = self.bundle.statistics
        if not stored:
            low, high = self.interface.action_low, self.interface.action_high
            if not low or not all(map(math.isfinite, [*low, *high])):
                raise ConfigurationError(
                    f"policy {self.options.name} starts without action statistics and the environment's actions are "
                    f"unbounded ({low} to {high}); give policy.checkpoint with statistics or a bounded control mode."
                )
            stored[ENVIRONMENT] = statistics.from_bounds(low, high, self.interface.state_dim)
        self.statistics_key, entry = statistics.select(stored, self.options.statistics)
        self.action_scale = statistics.QuantileScale(entry.get("action", {}), self.range_guard)
        if len(self.action_scale) != self.interface.action_dim:
            raise ConfigurationError(
                f"The statistics {self.statistics_key!r} are of {len(self.action_scale)} action dimensions; the "
                f"environment takes {self.interface.action_dim}. Choose other statistics or another control mode."
            )
        self.state_scale = statistics.QuantileScale(entry["proprio"], self.range_guard) if "proprio" in entry else None
        known = entry.get("privileged")
        fits = known is not None and len(known["mean"]) == self.interface.privileged_dim
        self.privileged_scale = statistics.StandardScale(known) if fits else None

    def set_statistics(self, key: str, entry: dict[str, Any]) -> None:
        """Use a dataset's statistics (see `statistics.compute`) from now on, and save them with the policy."""
        self.bundle.statistics = {key: entry}
        self.options = dataclasses.replace(self.options, statistics=key)
        self._use_statistics()

    # -- inputs and outputs -------------------------------------------------------------------------------------

    def prepare(self, observation: Observed) -> TensorDict:
        """`pixels` uint8 [B, V, h, w, 3], `input_ids` int64 [B, L], `prompt_mask` bool [B, L] (False on padding), and
        `privileged` float32 [B, P] for a critic that looks at it, where there is any."""
        if observation.images is None:
            raise ConfigurationError(f"policy {self.spec.name} needs pictures; the observation has none.")
        pixels = self.pictures(observation.images[:, : self.views])
        ids, mask = self.prompts(observation.instruction)
        inputs = TensorDict({"pixels": pixels, "input_ids": ids, "prompt_mask": mask}, batch_size=[len(ids)])
        known = observation.privileged
        # where the simulator tells something else, as of another suite, the policy acts on without values
        if self.privileged_critic and known is not None and known.shape[1] == self.interface.privileged_dim:
            known = known.cpu()
            inputs["privileged"] = (
                known.float() if self.privileged_scale is None else self.privileged_scale.normalise(known)
            )
        return inputs

    def make_room(self, instructions: tuple[str, ...]) -> None:
        """Widen prompts to the longest of `instructions`; padding is masked, so shorter ones mean what they meant."""
        self.prompts.length = max(self.prompts.length, self.prompts.longest(instructions))

    @property
    def privileged_critic(self) -> bool:
        """Whether values come from what only the simulator knows."""
        return self.options.critic == "privileged" and self.spec.values > 0

    @property
    def device(self) -> torch.device:
        """Where the weights are; inputs are moved there."""
        return self.model.language_model.lm_head.weight.device

    def picture_planes(self, inputs: TensorDict) -> torch.Tensor:
        """[B, V, F, 3, h, w] normalised pixels in the weights' type."""
        weight = self.model.vision_backbone.featurizer.patch_embed.proj.weight
        return self.normaliser(inputs["pixels"].to(self.device)).to(weight.dtype)

    def prompt(self, inputs: TensorDict) -> tuple[torch.Tensor, torch.Tensor | None]:
        """ids int64 [B, L] and mask bool [B, L], cut to the batch's longest prompt; mask None without padding."""
        ids, mask = inputs["input_ids"].to(self.device), inputs["prompt_mask"].to(self.device)
        gaps = (~mask).sum(1)
        shared, widest = torch.stack(gaps.aminmax()).tolist()
        ids = torch.cat([ids[:, :1], ids[:, 1 + shared :]], dim=1)
        if widest == shared:
            return ids, None
        return ids, torch.cat([mask[:, :1], mask[:, 1 + shared :]], dim=1)

    @staticmethod
    def context(text: torch.Tensor, mask: torch.Tensor | None, middle: torch.Tensor) -> Context:
        """Prompt embeddings [B, L, D] with pictures (and whatever else) [B, P, D] after their first token."""
        embeddings = splice(text, middle.to(text.dtype))
        if mask is None:
            counts = torch.tensor([embeddings.shape[1]], device=text.device)
            return Context(embeddings, None, counts)
        valid = splice(mask, mask.new_ones(middle.shape[:2]))
        return Context(embeddings, valid, valid.sum(1))

    def executed(self, normalised: torch.Tensor) -> torch.Tensor:
        """float32 [B, C, A] actions for the environment from [B, C, A] in [-1, 1]."""
        return gripper.executed(self.action_scale.unnormalise(normalised), self.options.gripper)

    def wanted(self, actions: torch.Tensor) -> torch.Tensor:
        """float32 [B, C, A] in [-1, 1] from [B, C, A] that an environment took; what `executed` undoes, within the
        statistics' range."""
        return self.action_scale.normalise(gripper.demonstrated(actions.to(self.device), self.options.gripper))

    def log_probabilities(
        self, hidden: torch.Tensor, sampling: Sampling, drawn: torch.Tensor | None = None
    ) -> torch.Tensor:
        """float32 [..., 256]: log-probabilities of the action tokens that follow `hidden` [..., D].

        The one function behind the log-probabilities of `act` and of `evaluate`. drawn: int64 [...], what was drawn, in
        `evaluate` (see `distributions.filter_logits`).
        """
        return distributions.filter_logits(self.model.action_logits(hidden), sampling, drawn)

    def values(self, hidden: torch.Tensor | None, inputs: TensorDict) -> torch.Tensor | None:
        """float32 [B, V] from the last prompt token's hidden state [B, D], or from what the simulator knows; None
        without value head, or where the simulator said nothing."""
        if not self.privileged_critic:
            return self.value_head(hidden) if self.spec.values else None
        return self.value_head(inputs["privileged"].to(self.device)) if "privileged" in inputs else None

    def require_value_head(self, inputs: TensorDict) -> None:
        """Raises ConfigurationError where there is none, or nothing for it to look at."""
        if not self.spec.values:
            raise ConfigurationError(f"policy {self.spec.name} has no value head (policy.value: none).")
        if self.privileged_critic and "privileged" not in inputs:
            raise ConfigurationError(
                "policy.critic: privileged has no values for an observation without the simulator's own numbers."
            )

    # -- learning from demonstrations ---------------------------------------------------------------------------

    @abc.abstractmethod
    def supervised(self, inputs: TensorDict, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [B, n, D] and the token ids [B, n] they should predict, given tokens [B, C, A]."""

    def with_stop(self, targets: torch.Tensor) -> torch.Tensor:
        """[B, n] ids and the stop token after them."""
        stop = torch.full_like(targets[:, :1], self.model.architecture.stop_token)
        return torch.cat([targets, stop], dim=1)

    def imitation(
        self, inputs: TensorDict, actions: torch.Tensor, valid: torch.Tensor | None = None, *, spread: float = 0.0
    ) -> Imitation:
        """Cross-entropy over the whole vocabulary, as in the published training.

        Args:
            inputs: from `prepare`.
            actions: float32 [B, C, A] demonstrated, as the environment took them.
            valid: bool [B, C]; False where a demonstration has no more actions. None: all.
            spread: standard deviation, of the normalised range [-1, 1], of the distribution over bins that is learnt
                around each action; 0 learns its bin alone. Bins then know their neighbours, which few demonstrations
                and fresh weights need.
        """
        wanted = self.wanted(actions)
        tokens = self.tokens.encode(wanted)
        hidden, targets = self.supervised(inputs, tokens)
        logits = self.model.language_model.lm_head(hidden).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        if spread:
            count = tokens[0].numel()
            scores = logits[:, :count].log_softmax(-1)[..., self.tokens.rows]
            soft = -(self.tokens.spread(wanted.flatten(1), spread) * scores).sum(-1)
            losses = torch.cat([soft, losses[:, count:]], dim=1)
        real = torch.ones(tokens.shape[:2], device=losses.device) if valid is None else valid.to(losses.device).float()
        weight = real[..., None].expand_as(tokens)
        # the stop token belongs to a chunk that is demonstrated to its end
        extra = losses.shape[1] - weight[0].numel()
        weights = torch.cat([weight.flatten(1), real[:, -1:].expand(-1, extra)], dim=1)
        with torch.no_grad():
            count = tokens[0].numel()
            best = logits[:, :count, self.tokens.rows].argmax(-1).view_as(tokens) + self.tokens.first
            total = weight.sum().clamp_min(1)
            accuracy = ((best == tokens) * weight).sum() / total
            gap = (self.tokens.decode(best) - self.tokens.decode(tokens)).abs()
            distance = (gap * weight).sum() / total
        # by valid actions, stop token included: micro-batches weighted by their valid actions give the whole batch
        whole = real.sum().clamp_min(1) * losses.shape[1] / tokens.shape[1]
        return Imitation((losses * weights).sum() / whole, accuracy, distance.float())

    # -- adapters, description, saving --------------------------------------------------------------------------

    def blocks(self) -> list[nn.Module]:
        """The repeated layers of vision and decoder: units to shard, or to recompute, by themselves."""
        vision = [block for vit in self.model.vision_backbone.featurizers for block in vit.blocks]
        return [*vision, *self.model.language_model.model.layers]

    def load_components(self, folder: Path) -> None:
        """Load the heads beside the model that `folder` has files for; others keep their fresh weights."""
        path = folder / VALUE_HEAD
        if self.spec.values and path.is_file():
            try:
                weights = safetensors.torch.load_file(path)
                self.value_head.load_state_dict(weights)
            except safetensors.SafetensorError as error:
                raise CheckpointError(
                    f"{path} is not a readable safetensors file: {error}. Remove it to start with a fresh value head."
                ) from None
            except RuntimeError as error:
                raise CheckpointError(
                    f"{path} does not fit policy.value {self.options.value} and policy.critic {self.options.critic} "
                    f"({error}); set both as they were when the policy was saved, or remove the file to start "
                    "with a fresh value head."
                ) from None
            for name, tensor in weights.items():
                if fault := numbers_fault(tensor):
                    raise CheckpointError(f"{path}: in {name} {fault}. Remove it to start with a fresh value head.")

    def published_state(self) -> dict[str, torch.Tensor]:
        """The model's tensors under published names."""
        return lora.plain_state(self.model)

    @abc.abstractmethod
    def write_components(self, folder: Path) -> None:
        """Write the files of heads beside the model, other than the value head's."""

    def attach_adapters(self) -> None:
        """Put the configured adapters on the model; heads beside it stay trainable."""
        if self.options.lora is not None:
            lora.attach(self.model, self.options.lora)

    @abc.abstractmethod
    def probe(self) -> torch.Tensor:
        """Something that depends on every layer, for comparing a merged policy with an adapted one."""

    def probe_inputs(self) -> TensorDict:
        """Two observations of fixed noise."""
        generator = torch.Generator().manual_seed(0)
        size, views = self.pictures.size, self.views
        pixels = torch.randint(0, 256, (2, views, size, size, 3), generator=generator, dtype=torch.uint8)
        texts = [*self.interface.instructions[:1], *self.interface.instructions[-1:]]
        ids, mask = self.prompts(texts)
        inputs = TensorDict({"pixels": pixels, "input_ids": ids, "prompt_mask": mask}, batch_size=[2])
        if self.state_scale is not None:
            inputs["proprio"] = torch.randn(2, len(self.state_scale), generator=generator)
        return inputs

    def metadata(self) -> dict[str, Any]:
        """Kind, options and interface; sizes, tokenizer and statistics are in the folder's own files."""
        options = {**dataclasses.asdict(self.options), "prompt_tokens": self.prompts.length}
        del options["attention"]  # what this machine computes with; the next may not have it
        return {"kind": self.kind, "options": options, "interface": dataclasses.asdict(self.interface)}
