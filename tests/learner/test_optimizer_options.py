"""What Adam is given of the options, against steps worked out by hand."""

import math

import pytest
import torch
from torch import nn

from embodied.learner.learner import Learner, LearnerConfig


def weights_after(gradients, **options):
    """A weight of 2 after a step for every gradient."""
    weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    learner = Learner({"actor": [weight]}, LearnerConfig(lr=0.1, eps=1e-12, grad_clip=None, **options), "cpu")
    found = []
    for gradient in gradients:
        learner.step([gradient], lambda factor: (factor * weight.sum(), {}))
        found.append(weight.item())
    return found


def test_betas_weigh_the_gradients_of_earlier_steps():
    first, second = weights_after([1.0, 3.0], betas=(0.5, 0.25))
    mean = (0.5 * 0.5 * 1 + 0.5 * 3) / (1 - 0.5**2)
    square = (0.25 * 0.75 * 1 + 0.75 * 9) / (1 - 0.25**2)
    assert first == pytest.approx(2 - 0.1)
    assert second == pytest.approx(2 - 0.1 - 0.1 * mean / math.sqrt(square))


def test_weight_decay_shrinks_by_the_learning_rate_beside_adams_step():
    assert weights_after([1.0], weight_decay=0.5) == pytest.approx([2 * (1 - 0.1 * 0.5) - 0.1])
