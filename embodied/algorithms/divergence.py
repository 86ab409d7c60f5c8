"""Per-entry estimators of the KL divergence from a reference policy, and the entropy of categorical logits.

Each estimator takes log-probabilities of the same draws under the current and the reference policy, in that order; the
draws come from the current one. Source: Schulman, "Approximating KL divergence", 2020.
"""

from __future__ import annotations

import torch

from embodied.algorithms.masked import require_shape


def kl_k1(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """cur - ref: unbiased, of high variance, of either sign. For penalties inside a reward: as a loss term its expected
    gradient is zero, so it regularises nothing."""
    require_shape("kl_k1", logprobs.shape, reference_logprobs=reference_logprobs)
    return logprobs - reference_logprobs


def kl_k2(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """(cur - ref)^2 / 2: never negative, slightly biased; as a loss term its gradient is that of KL(current, ref)."""
    return 0.5 * kl_k1(logprobs, reference_logprobs).square()


def kl_k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """exp(ref - cur) - (ref - cur) - 1: unbiased and never negative; GRPO's choice."""
    difference = -kl_k1(logprobs, reference_logprobs)
    return torch.expm1(difference) - difference


def kl_abs(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """|cur - ref|: a distance, not a divergence; robust to outliers."""
    return kl_k1(logprobs, reference_logprobs).abs()


def entropy_from_logits(logits: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of softmax(logits) over the last dimension, [...]; entries of -inf are impossible and add 0."""
    logprobs = torch.log_softmax(logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits, dim=-1)
    possible = torch.isfinite(logprobs)
    finite = torch.where(possible, logprobs, torch.zeros_like(logprobs))
    return -(torch.where(possible, finite.exp(), torch.zeros_like(finite)) * finite).sum(-1)
