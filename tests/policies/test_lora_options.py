"""What adapters are made of: their scale, their dropout and their type."""

from __future__ import annotations

import pytest
import torch
from tiny_vla import build, noise, shown

from policies.api import Sampling
from policies.vla import lora
from policies.vla.architecture import NetworkSizes
from policies.vla.options import LoraOptions

SMALL = NetworkSizes(image_size=28, layers=1, width=32, vision_layers=2, vision_width=32)


def adapted(**options):
    given = {name: options.pop(name) for name in ("rank", "alpha", "dropout") if name in options}
    policy = build("openvla_oft", chunk=2, sizes=SMALL, lora=LoraOptions(**given), **options)
    return policy, list(lora.layers(policy.model).values())


@pytest.mark.parametrize(
    ("rank", "alpha", "scale"), [(4, None, 1.0), (16, None, 1.0), (32, None, 0.5), (8, 32, 4.0), (32, 8, 0.25)]
)
def test_adapters_are_scaled_by_alpha_over_rank_and_alpha_is_at_most_16_unless_given(rank, alpha, scale):
    _, layers = adapted(rank=rank, alpha=alpha)
    assert {layer.scaling["default"] for layer in layers} == {scale}
    layer = layers[0]
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    x = torch.randn(3, layer.in_features)
    with torch.no_grad():
        added = layer(x) - layer.get_base_layer()(x)
        product = x @ layer.lora_A["default"].weight.T @ layer.lora_B["default"].weight.T
    torch.testing.assert_close(added, scale * product, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_is_drawn_in_training_alone(dropout):
    policy, layers = adapted(rank=4, dropout=dropout)
    for layer in layers:
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    inputs = policy.prepare(shown())
    with torch.no_grad():
        tokens = policy.act(inputs, Sampling(), noise()).tokens

        def evaluated():
            return policy.evaluate(inputs, tokens, Sampling()).logprobs

        assert torch.equal(evaluated(), evaluated())
        policy.train()
        assert torch.equal(evaluated(), evaluated()) == (dropout == 0)


def test_adapters_of_bfloat16_weights_are_float32():
    policy, layers = adapted(rank=4, precision="bfloat16")
    assert {layer.get_base_layer().weight.dtype for layer in layers} == {torch.bfloat16}
    adapters = {p.dtype for name, p in policy.model.named_parameters() if ".lora_" in name}
    assert adapters == {torch.float32}
