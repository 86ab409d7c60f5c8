"""How likely given tokens are and how undecided the model was, in as few passes over the logits as there can be.

Logits of a large vocabulary are most of what a small model moves through memory while it learns; composed of torch's
own operations, the two numbers of a token take some twenty passes over them, forward and back, and five here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def judge(logits: torch.Tensor, tokens: torch.Tensor, *, entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the tokens under softmax(logits), and the entropies of that: float32 [M] each.

    logits float32 [M, V], finite; tokens int64 [M]. entropy: whether a gradient goes through the entropies too.
    """
    with torch.autocast(logits.device.type, enabled=False):
        logprobs, entropies = _Judgement.apply(logits, tokens, entropy)
    return logprobs, entropies


class _Judgement(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, tokens: torch.Tensor, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        every = F.log_softmax(logits, -1)
        entropies = -torch.linalg.vecdot(every.exp(), every)
        ctx.save_for_backward(every, tokens, entropies)
        if not entropy:
            ctx.mark_non_differentiable(entropies)
        ctx.entropy = entropy
        return every.gather(1, tokens[:, None])[:, 0], entropies

    @staticmethod
    def backward(ctx: Any, of_logprobs: torch.Tensor, of_entropies: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        every, tokens, entropies = ctx.saved_tensors
        # d logprob / d logit = [token] - p, and d entropy / d logit = -p (log p + entropy)
        probabilities = every.exp()
        if ctx.entropy:
            weight = (every + entropies[:, None]).mul_(of_entropies[:, None]).add_(of_logprobs[:, None])
            gradient = probabilities.mul_(weight.neg_())
        else:
            gradient = probabilities.mul_(-of_logprobs[:, None])
        return gradient.scatter_add_(1, tokens[:, None], of_logprobs[:, None]), None, None
