"""OpenVLA-OFT as a policy: placeholders for a whole chunk, one pass with bidirectional attention, all actions at once.

Sequence: beginning, patches of each picture, optionally a state token, prompt, C x A placeholders without content,
optionally the stop token. The hidden state *before* a placeholder gives that placeholder's action token, so the last
prompt token gives the first. Acting and evaluating are the same pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from tensordict import TensorDict
from torch import nn

from embodied.errors import CheckpointError, ConfigurationError, CorrectnessAlarm
from policies import distributions
from policies.api import Evaluation, Imitation, Interface, Noise, Observed, PolicyOutput, Sampling
from policies.openvla_oft.config import OpenVLAOFTConfig
from policies.openvla_oft.heads import RegressionHead, StateProjector, add_film, film_layers
from policies.vla import checkpoint, lora
from policies.vla.attention import bidirectional_plan
from policies.vla.bundle import Bundle
from policies.vla.network import OpenVLAModel
from policies.vla.policy import VLAPolicy, as_chosen
from policies.vla.statistics import RangeGuard

ACTION_HEAD, STATE_PROJECTOR, VISION = "action_head", "proprio_projector", "vision_backbone"
PLACEHOLDERS = "placeholders"


class OpenVLAOFTPolicy(VLAPolicy):
    """See the module's docstring."""

    kind = "openvla_oft"
    default_views = None
    range_guard = RangeGuard.EPSILON
    options: OpenVLAOFTConfig

    def __init__(self, options: OpenVLAOFTConfig, interface: Interface, bundle: Bundle, model: OpenVLAModel) -> None:
        super().__init__(options, interface, bundle, model)
        width = model.architecture.llama.hidden_size
        if options.film == "language":
            add_film(model.vision_backbone, width)
        if options.state == "token":
            if self.state_scale is None or len(self.state_scale) != interface.state_dim or not interface.state_dim:
                known = 0 if self.state_scale is None else len(self.state_scale)
                raise ConfigurationError(
                    f"policy.state: token needs statistics of the state; {self.statistics_key!r} has {known} "
                    f"dimensions, the environment {interface.state_dim}. Use policy.state: none or other statistics."
                )
            self.state_projector = StateProjector(interface.state_dim, width)
        if options.placeholders == "learned":
            self.placeholders = nn.Embedding(self.spec.chunk * self.spec.tokens_per_action, width)
            nn.init.normal_(self.placeholders.weight, std=0.05)
        if options.head == "l1":
            self.action_head = RegressionHead(width, interface.action_dim)
            model.language_model.lm_head.requires_grad_(False)
        self.require_bidirectional()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """As a module's; on another device another kernel may attend, so the assertion at load is repeated there."""
        before = self.device
        super().to(*args, **kwargs)
        if self.device != before:
            self.require_bidirectional()
        return self

    @torch.no_grad()
    def require_bidirectional(self) -> None:
        """Change a later placeholder and see an earlier one move.

        Raises CorrectnessAlarm where it does not: with a causal decoder this policy acts at chance level while
        everything else looks right. Not possible, hence not done, on the meta device.
        """
        if self.device.type == "meta":
            return
        generator = torch.Generator().manual_seed(0)
        width = self.model.architecture.llama.hidden_size
        dtype = self.model.language_model.lm_head.weight.dtype
        embeddings = torch.randn(1, 4, width, generator=generator).to(self.device, dtype)
        positions = torch.arange(4, device=self.device)[None]
        plan = bidirectional_plan(torch.ones(1, 4, dtype=torch.bool, device=self.device))
        first = self.model.hidden(embeddings, positions, plan)[:, 0]
        embeddings[:, -1] = -embeddings[:, -1]
        if torch.equal(first, self.model.hidden(embeddings, positions, plan)[:, 0]):
            raise CorrectnessAlarm(
                "OpenVLA-OFT needs bidirectional attention, but changing a later position did not change an earlier "
                "one: the decoder is causal. Do not replace its attention with a causal kernel."
            )

    def prepare(self, observation: Observed) -> TensorDict:
        """As the base's, and `proprio` float32 [B, S] normalised where the state is a token."""
        inputs = super().prepare(observation)
        if self.options.state == "token":
            inputs["proprio"] = self.state_scale.normalise(observation.state)
        return inputs

    def hidden_states(self, inputs: TensorDict) -> torch.Tensor:
        """[B, C x A + 1, D]: those that give the actions, and the one after, which gives the stop token."""
        ids, mask = self.prompt(inputs)
        embed = self.model.language_model.embed
        text = embed(ids)
        tail_length = self.spec.chunk * self.spec.tokens_per_action
        tail = text.new_zeros(len(text), tail_length, text.shape[-1])
        if self.options.placeholders == "learned":
            tail = tail + self.placeholders.weight.to(text.dtype)
        if self.options.stop == "append":
            stop = torch.full_like(ids[:, :1], self.model.architecture.stop_token)
            tail = torch.cat([tail, embed(stop)], dim=1)
        condition = None
        if self.options.film == "language":
            condition = _average(text, mask, tail[:, tail_length:])
        middle = self.model.embed_pictures(self.picture_planes(inputs), condition)
        if self.options.state == "token":
            state = self.state_projector(inputs["proprio"].to(self.device))
            middle = torch.cat([middle, state.to(middle.dtype)], dim=1)
        embeddings, valid, positions = self.context(text, mask, middle).extend(tail)
        end = embeddings.shape[1] - (tail.shape[1] - tail_length)
        rows = slice(end - tail_length - 1, end)
        return self.model.hidden(embeddings, positions, bidirectional_plan(valid), rows=rows)

    def _chunked(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, C, A, D] of `hidden_states`."""
        return hidden[:, :-1].unflatten(1, (self.spec.chunk, -1))

    @as_chosen
    def act(self, inputs: TensorDict, sampling: Sampling, noise: Noise) -> PolicyOutput:
        """One pass; one uniform number a token decides it. The l1 head emits its prediction, with probability 1."""
        hidden = self.hidden_states(inputs)
        value = self.values(hidden[:, 0], inputs)
        chunks = self._chunked(hidden)
        if self.options.head == "l1":
            if sampling.decode == "sample":
                raise ConfigurationError("policy.head: l1 has no distribution to sample; use sampling.decode: greedy.")
            normalised = self.action_head(chunks).float()
            tokens = self.tokens.encode(normalised)
            return PolicyOutput(self.executed(normalised), tokens, torch.zeros_like(normalised), value)
        scores = self.log_probabilities(chunks, sampling)
        uniform = torch.empty(0)
        if sampling.decode == "sample":
            uniform = noise.uniform(*scores.shape[1:3]).to(scores.device)
        index = distributions.draw_categorical(scores, uniform, sampling)
        tokens = index + self.tokens.first
        logprobs = distributions.categorical_logprob(scores, index)
        return PolicyOutput(self.executed(self.tokens.decode(tokens)), tokens, logprobs, value)

    @as_chosen
    def evaluate(self, inputs: TensorDict, tokens: torch.Tensor, sampling: Sampling) -> Evaluation:
        """Log-probability of each of `tokens` [B, C, A], entropy, and values."""
        if self.options.head == "l1":
            raise ConfigurationError(
                "policy.head: l1 has no log-probabilities; train it with policy gradients as policy.head: tokens."
            )
        hidden = self.hidden_states(inputs)
        index = tokens.to(self.device) - self.tokens.first
        scores = self.log_probabilities(self._chunked(hidden), sampling, index)
        return Evaluation(
            logprobs=distributions.categorical_logprob(scores, index),
            entropy=distributions.categorical_entropy(scores),
            value=self.values(hidden[:, 0], inputs),
        )

    @as_chosen
    def value(self, inputs: TensorDict) -> torch.Tensor:
        """[B, V]: the same pass, since the last prompt token sees the placeholders."""
        self.require_value_head(inputs)
        if self.privileged_critic:
            return self.values(None, inputs)
        return self.value_head(self.hidden_states(inputs)[:, 0])

    def supervised(self, inputs: TensorDict, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base; the stop token is a target where it is part of the sequence."""
        hidden = self.hidden_states(inputs)
        targets = tokens.to(self.device).flatten(1)
        if self.options.stop == "omit":
            return hidden[:, :-1], targets
        return hidden, self.with_stop(targets)

    def imitation(
        self, inputs: TensorDict, actions: torch.Tensor, valid: torch.Tensor | None = None, *, spread: float = 0.0
    ) -> Imitation:
        """See the base; mean absolute error for the l1 head, which has no bins to spread."""
        if self.options.head == "tokens":
            return super().imitation(inputs, actions, valid, spread=spread)
        wanted = self.wanted(actions)
        predicted = self.action_head(self._chunked(self.hidden_states(inputs))).float()
        weight = (
            torch.ones_like(wanted) if valid is None else valid.to(self.device)[..., None].expand_as(wanted).float()
        )
        loss = ((predicted - wanted).abs() * weight).sum() / weight.sum().clamp_min(1)
        same = (self.tokens.encode(predicted) == self.tokens.encode(wanted)).float()
        accuracy = (same * weight).sum() / weight.sum().clamp_min(1)
        return Imitation(loss=loss, accuracy=accuracy, distance=loss.detach())

    def probe(self) -> torch.Tensor:
        """Action logits, or the regression head's actions, of fixed inputs."""
        chunks = self._chunked(self.hidden_states(self.probe_inputs()))
        return (self.action_head(chunks) if self.options.head == "l1" else self.model.action_logits(chunks)).float()

    def attach_adapters(self) -> None:
        """As the base's; conditioning layers stay trainable too."""
        super().attach_adapters()
        if self.options.lora is not None:
            for layer in film_layers(self.model.vision_backbone):
                layer.requires_grad_(True)

    # -- component files ----------------------------------------------------------------------------------------

    def load_components(self, folder: Path) -> None:
        """Load regression head, state projector and conditioned vision; raises CheckpointError where a head that was
        asked for has no file."""
        super().load_components(folder)
        wanted = {}
        if self.options.head == "l1":
            wanted[ACTION_HEAD] = self.action_head
        if self.options.state == "token":
            wanted[STATE_PROJECTOR] = self.state_projector
        if self.options.film == "language":
            wanted[VISION] = self.model.vision_backbone
        if self.options.placeholders == "learned":
            wanted[PLACEHOLDERS] = self.placeholders
        for name, module in wanted.items():
            path = checkpoint.find_component(folder, name)
            if path is None:
                raise CheckpointError(
                    f"{folder} has no file {name}--*_checkpoint.pt, which policy.head {self.options.head}, "
                    f"policy.state {self.options.state}, policy.film {self.options.film} and policy.placeholders "
                    f"{self.options.placeholders} ask for. Use another checkpoint, or start without."
                )
            checkpoint.load_component(module, path, prefix="vision_backbone." if name == VISION else "")

    def write_components(self, folder: Path) -> None:
        """Write the component files of what this policy has."""
        if self.options.head == "l1":
            checkpoint.write_component(self.action_head.state_dict(), folder, ACTION_HEAD)
        if self.options.state == "token":
            checkpoint.write_component(self.state_projector.state_dict(), folder, STATE_PROJECTOR)
        if self.options.placeholders == "learned":
            checkpoint.write_component(self.placeholders.state_dict(), folder, PLACEHOLDERS)
        if self.options.film == "language":
            state = lora.plain_state(self.model.vision_backbone)
            checkpoint.write_component({f"vision_backbone.{k}": v for k, v in state.items()}, folder, VISION)

    def published_state(self) -> dict[str, torch.Tensor]:
        """As the base's; conditioned blocks under the names of plain ones, their conditioning left to its own file."""
        state = super().published_state()
        if self.options.film == "none":
            return state
        return {
            name.replace(".block.", "."): tensor
            for name, tensor in state.items()
            if not (name.startswith("vision_backbone.") and (".scale." in name or ".shift." in name))
        }


def _average(text: torch.Tensor, mask: torch.Tensor | None, stop: torch.Tensor) -> torch.Tensor:
    """[B, D]: mean embedding of the prompt's tokens and the stop token, padding left out."""
    if mask is None:
        return torch.cat([text, stop], dim=1).mean(1)
    total = (text * mask[..., None]).sum(1) + stop.sum(1)
    return total / (mask.sum(1, keepdim=True) + stop.shape[1])
