"""oneDNN's products are the same function as torch's own."""

from __future__ import annotations

import torch
from torch import nn

from reasoning.models.cpu_linear import use_onednn
from reasoning.models.tiny import tiny_model, tiny_tokenizer


def test_values_and_gradients_equal_those_of_torch():
    tokenizer = tiny_tokenizer()
    plain, ours = (tiny_model(tokenizer, seed=0) for _ in range(2))
    use_onednn(ours)
    tokens = torch.randint(3, 200, (4, 21), generator=torch.Generator().manual_seed(0))
    outputs = [model(input_ids=tokens).logits for model in (plain, ours)]
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)
    for logits in outputs:
        logits.log_softmax(-1)[..., 7].sum().backward()
    for (name, a), (other, b) in zip(plain.named_parameters(), ours.named_parameters(), strict=True):
        assert name == other
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)


def test_biases_frozen_weights_and_other_dtypes_work():
    torch.manual_seed(0)
    layer, x = nn.Linear(5, 3), torch.randn(2, 4, 5, requires_grad=True)
    expected = layer(x)
    expected.sum().backward()
    wanted = x.grad.clone(), layer.bias.grad.clone()
    x.grad = layer.bias.grad = None
    use_onednn(layer)
    layer.weight.requires_grad_(False)
    output = layer(x)
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    torch.testing.assert_close(x.grad, wanted[0])
    torch.testing.assert_close(layer.bias.grad, wanted[1])
    assert layer.double()(x.double()).dtype is torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(x).dtype is torch.bfloat16
