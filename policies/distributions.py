"""The distributions of small policies, with one function for log-probabilities in acting and in evaluation.

Draws come from row noise (uniform or normal numbers handed in), never from a global generator.
"""

from __future__ import annotations

import math

import torch

from policies.api import Noise, Sampling

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def filter_logits(logits: torch.Tensor, sampling: Sampling, drawn: torch.Tensor | None = None) -> torch.Tensor:
    """Float32 log-probabilities [..., K] of the sampling distribution: temperature, then top-k, then top-p, then
    log-softmax. Excluded choices get -inf.

    drawn: int64 [...], choices that top-k and top-p never exclude. A choice was among those kept when it was drawn, but
        after an update it may not be: its log-probability is then that within the distribution widened by it, which
        falls steadily as the choice leaves the limits, instead of jumping to -inf, where nothing could bring it back.
    """
    logits = unlimited = logits.float() / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest_kept = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest_kept, -math.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        # a choice is kept while the more probable ones do not yet hold top_p; the first is always kept
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= sampling.top_p)
        logits = logits.masked_fill(dropped, -math.inf)
    if drawn is not None and logits is not unlimited:
        index = drawn.unsqueeze(-1)
        logits = logits.scatter(-1, index, unlimited.gather(-1, index))
    return logits.log_softmax(dim=-1)


def draw_categorical(log_probabilities: torch.Tensor, uniform: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """int64 [...]: index drawn by inverting the cumulative distribution at `uniform` [...]; the mode when greedy."""
    if sampling.decode == "greedy":
        return log_probabilities.argmax(dim=-1)
    cumulative = log_probabilities.double().exp().cumsum(dim=-1)
    target = (uniform.double().unsqueeze(-1) * cumulative[..., -1:]).contiguous()
    # right=True skips choices of probability zero, whose cumulative value equals their predecessor's
    index = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    return index.clamp(max=log_probabilities.shape[-1] - 1)


def categorical_logprob(log_probabilities: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Float32 [...]: log-probability of `index`."""
    return log_probabilities.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def categorical_entropy(log_probabilities: torch.Tensor) -> torch.Tensor:
    """Float32 [...]: -sum p log p, in nats; excluded choices contribute nothing."""
    finite = log_probabilities.masked_fill(log_probabilities == -math.inf, 0.0)
    return -(log_probabilities.exp() * finite).sum(dim=-1)


def draw_gaussian(mean: torch.Tensor, log_std: torch.Tensor, noise: Noise, sampling: Sampling) -> torch.Tensor:
    """Float32 [B, C, A]: mean + temperature * std * noise; the mean when greedy."""
    if sampling.decode == "greedy":
        return mean.clone()
    return mean + noise.normal(*mean.shape[1:]) * (log_std.exp() * sampling.temperature)


def gaussian_logprob(
    draws: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor, sampling: Sampling
) -> torch.Tensor:
    """Float32 [B, C, A]: log-density of each dimension."""
    log_scale = log_std + math.log(sampling.temperature)
    return -0.5 * ((draws - mean) * (-log_scale).exp()) ** 2 - log_scale - _HALF_LOG_TWO_PI


def gaussian_entropy(mean: torch.Tensor, log_std: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Float32 [B, C, A]: differential entropy of each dimension, in nats."""
    return (log_std + math.log(sampling.temperature) + 0.5 + _HALF_LOG_TWO_PI).expand_as(mean)
