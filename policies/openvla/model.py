"""OpenVLA as a policy: action tokens are decoded one after another, each from those before it.

Acting encodes pictures and prompt once and keeps keys and values, so a further token costs one position. Evaluating
runs all tokens through the decoder at once. Both score the 256 action tokens only.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tensordict import TensorDict

from policies import distributions
from policies.api import Evaluation, Noise, PolicyOutput, Sampling
from policies.vla.attention import bidirectional_plan, causal_plan
from policies.vla.llama import KeyValueCache
from policies.vla.network import positions_of
from policies.vla.policy import Context, VLAPolicy, as_chosen
from policies.vla.statistics import RangeGuard

_LAST = slice(-1, None)


class OpenVLAPolicy(VLAPolicy):
    """See the module's docstring."""

    kind = "openvla"
    default_views = 1
    range_guard = RangeGuard.NONE

    def _context(self, inputs: TensorDict) -> Context:
        ids, mask = self.prompt(inputs)
        pictures = self.model.embed_pictures(self.picture_planes(inputs))
        return self.context(self.model.language_model.embed(ids), mask, pictures)

    @staticmethod
    def _positions(context: Context) -> torch.Tensor:
        if context.valid is None:
            return torch.arange(context.embeddings.shape[1], device=context.embeddings.device)[None]
        return positions_of(context.valid)

    @as_chosen
    def act(self, inputs: TensorDict, sampling: Sampling, noise: Noise) -> PolicyOutput:
        """Decode C x A tokens with a key-value cache; one uniform number a token decides it."""
        context = self._context(inputs)
        batch, length = context.embeddings.shape[:2]
        count = self.spec.chunk * self.spec.tokens_per_action
        uniform = torch.empty(batch, 0)
        if sampling.decode == "sample":
            uniform = noise.uniform(count).to(self.device)
        cache = KeyValueCache(len(self.model.language_model.model.layers), length + count - 1)
        hidden = self.model.hidden(
            context.embeddings, self._positions(context), causal_plan(context.valid), cache, _LAST
        )[:, 0]
        value = self.values(hidden, inputs)
        valid = context.valid
        if valid is not None:
            valid = torch.cat([valid, valid.new_ones(batch, count)], dim=1)
        tokens, logprobs = [], []
        for step in range(count):
            if step:
                # one query, and all keys are in its past: only padding is masked
                plan = bidirectional_plan(None if valid is None else valid[:, : length + step])
                position = (context.counts + (step - 1))[:, None]
                embedding = self.model.language_model.embed(tokens[-1][:, None])
                hidden = self.model.hidden(embedding, position, plan, cache)[:, 0]
            scores = self.log_probabilities(hidden, sampling)
            index = distributions.draw_categorical(scores, uniform[:, step : step + 1].squeeze(-1), sampling)
            logprobs.append(distributions.categorical_logprob(scores, index))
            tokens.append(index + self.tokens.first)
        drawn = torch.stack(tokens, dim=1).unflatten(1, (self.spec.chunk, -1))
        actions = self.executed(self.tokens.decode(drawn))
        return PolicyOutput(actions, drawn, torch.stack(logprobs, dim=1).unflatten(1, (self.spec.chunk, -1)), value)

    def _after(self, inputs: TensorDict, given: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, n + 1, D] of the last prompt token and of the n tokens `given` after it."""
        embeddings, valid, positions = self._context(inputs).extend(self.model.language_model.embed(given))
        return self.model.hidden(embeddings, positions, causal_plan(valid), rows=slice(-given.shape[1] - 1, None))

    def _teacher_forced(self, inputs: TensorDict, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, C x A, D] that predict `tokens` [B, C, A]: the last prompt token's is the first."""
        return self._after(inputs, tokens.to(self.device).flatten(1)[:, :-1])

    def supervised(self, inputs: TensorDict, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base; the stop token is the last target."""
        targets = tokens.to(self.device).flatten(1)
        return self._after(inputs, targets), self.with_stop(targets)

    @as_chosen
    def evaluate(self, inputs: TensorDict, tokens: torch.Tensor, sampling: Sampling) -> Evaluation:
        """Log-probability of each of `tokens` [B, C, A] given those before it, entropy, and values."""
        hidden = self._teacher_forced(inputs, tokens)
        index = tokens.to(self.device) - self.tokens.first
        scores = self.log_probabilities(hidden, sampling, index.flatten(1)).unflatten(1, tokens.shape[1:])
        return Evaluation(
            logprobs=distributions.categorical_logprob(scores, index),
            entropy=distributions.categorical_entropy(scores),
            value=self.values(hidden[:, 0], inputs),
        )

    @as_chosen
    def value(self, inputs: TensorDict) -> torch.Tensor:
        """[B, V], from the prompt alone."""
        self.require_value_head(inputs)
        if self.privileged_critic:
            return self.values(None, inputs)
        context = self._context(inputs)
        plan = causal_plan(context.valid)
        hidden = self.model.hidden(context.embeddings, self._positions(context), plan, rows=_LAST)
        return self.value_head(hidden[:, 0])

    def probe(self) -> torch.Tensor:
        """Action logits of a fixed token sequence."""
        middle = self.tokens.first + self.tokens.bins // 2
        tokens = torch.full((2, self.spec.chunk, self.spec.tokens_per_action), middle)
        return self.model.action_logits(self._teacher_forced(self.probe_inputs(), tokens)).float()

    def write_components(self, folder: Path) -> None:
        """OpenVLA has no component files."""
