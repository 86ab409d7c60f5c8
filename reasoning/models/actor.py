"""The two modules that are trained: a language model that says how likely given responses are, and a critic of them.

Both run over the same sequences, prompt and response behind each other, padded on the right: under a causal mask no
token sees the padding behind it, so no mask is needed and the fastest attention is used. The output matrix is applied
to the tokens of responses alone, in pieces, because logits of a large vocabulary are larger than everything else.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reasoning.batching import pack_sequences
from reasoning.generation.api import Sampling
from reasoning.generation.sampling import token_logprobs
from reasoning.models.likelihood import judge

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# numbers that the logits of one piece may have
_LOGITS = 1 << 26


class Actor(nn.Module):
    """A causal language model of transformers with a base `model` and an output matrix `lm_head`."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def evaluate(
        self,
        sequence: torch.Tensor,
        prompt_length: torch.Tensor,
        length: torch.Tensor,
        sampling: Sampling,
        *,
        row_tokens: int | None = None,
        entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities, and entropies, of the tokens of responses.

        sequence int64 [N, S]; prompt_length, length int64 [N] -> float32 [N, L], L the longest response; 0 behind each
        end. Both are of the distribution that `sampling` draws from. row_tokens: pack several sequences into rows of
        about so many tokens instead of padding each; values are the same. entropy: whether a gradient goes through the
        entropies, which are those before top_k and top_p.
        """
        states, tokens, there = _response_states(self.model.model, sequence, prompt_length, length, row_tokens)
        piece = max(1, _LOGITS // self.model.config.vocab_size)
        if len(tokens) <= piece:
            found = [self._judge(states, tokens, sampling, entropy)]
        else:
            parts = zip(states.split(piece), tokens.split(piece), strict=True)
            found = [checkpoint(self._judge, s, t, sampling, entropy, use_reentrant=False) for s, t in parts]
        logprobs = torch.zeros(there.shape, device=sequence.device)
        entropies = torch.zeros(there.shape, device=sequence.device)
        logprobs = logprobs.masked_scatter(there, torch.cat([f[0] for f in found]))
        return logprobs, entropies.masked_scatter(there, torch.cat([f[1] for f in found]))

    def _judge(
        self, states: torch.Tensor, tokens: torch.Tensor, sampling: Sampling, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model.lm_head(states).float()
        if sampling.temperature != 1:
            logits = logits / sampling.temperature
        logprobs, spread = judge(logits, tokens, entropy=entropy)
        if sampling.top_k is not None or sampling.top_p < 1:
            logprobs = token_logprobs(logits, tokens, dataclasses.replace(sampling, temperature=1.0))
        return logprobs, spread

    def blocks(self) -> list[nn.Module]:
        """The layers, which are sharded and recomputed one by one."""
        return list(self.model.model.layers)


class Critic(nn.Module):
    """The same kind of model with a number for every token instead of an output matrix: what the rest will earn.

    The first values are all 0, so that the first advantages are those of the scores alone.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model.model
        self.value = nn.Linear(model.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.value.weight)

    def values(
        self,
        sequence: torch.Tensor,
        prompt_length: torch.Tensor,
        length: torch.Tensor,
        *,
        row_tokens: int | None = None,
    ) -> torch.Tensor:
        """float32 [N, L]: the value of what stands before each token of the responses; 0 behind each end."""
        states, _, there = _response_states(self.model, sequence, prompt_length, length, row_tokens)
        found = self.value(states)[:, 0].float()
        return torch.zeros(there.shape, device=sequence.device).masked_scatter(there, found)

    def blocks(self) -> list[nn.Module]:
        """The layers."""
        return list(self.model.layers)


def _response_states(
    base: nn.Module,
    sequence: torch.Tensor,
    prompt_length: torch.Tensor,
    length: torch.Tensor,
    row_tokens: int | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States [M, H] that the M response tokens of all rows are drawn from, these tokens int64 [M], and where they are,
    bool [N, L]."""
    places = torch.arange(int(length.max()), device=sequence.device)
    there = places < length[:, None]
    row, place = there.nonzero(as_tuple=True)
    at = prompt_length[row] + place
    total = (prompt_length + length).tolist()
    # the last token predicts nothing, so it is not fed
    if row_tokens is None:
        states = base(input_ids=sequence[:, : max(total) - 1], use_cache=False).last_hidden_state
        return states[row, at - 1], sequence[row, at], there
    parts = [sequence[i, : n - 1] for i, n in enumerate(total)]
    packed = pack_sequences(parts, max(row_tokens, max(total)), padding=0)
    states = base(
        input_ids=packed.tokens, position_ids=packed.positions, attention_mask=packed.mask(), use_cache=False
    ).last_hidden_state
    flat = torch.cat(packed.gather(states))
    fed = torch.tensor(total, device=sequence.device) - 1
    starts = fed.cumsum(0) - fed
    return flat[starts[row] + at - 1], sequence[row, at], there
