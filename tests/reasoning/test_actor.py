"""Log-probabilities and values of responses: against transformers one sequence at a time, padded and packed."""

from __future__ import annotations

import pytest
import torch

from reasoning.generation.api import Sampling
from reasoning.models import actor as actors
from reasoning.models.actor import Actor, Critic
from reasoning.models.likelihood import judge
from reasoning.models.loading import load_model
from tests.reasoning.small_runs import save_small_model

PROMPTS, LENGTHS = [3, 7, 2, 5], [4, 1, 9, 6]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(save_small_model(tmp_path_factory.mktemp("model")), dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def batch():
    source = torch.Generator().manual_seed(0)
    rows = [torch.randint(2, 200, (p + n,), generator=source) for p, n in zip(PROMPTS, LENGTHS, strict=True)]
    sequence = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return rows, sequence, torch.tensor(PROMPTS), torch.tensor(LENGTHS)


def by_hand(model, rows, temperature):
    found = []
    for row, prompt in zip(rows, PROMPTS, strict=True):
        logits = model(input_ids=row[None]).logits[0, prompt - 1 : -1] / temperature
        logprobs = logits.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        found.append((logprobs.gather(1, row[prompt:, None])[:, 0], entropy))
    return found


@pytest.mark.parametrize("row_tokens", [None, 20])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_sampling_distribution_at_its_temperature(model, batch, row_tokens, temperature):
    rows, sequence, prompt_length, length = batch
    sampling = Sampling(temperature=temperature)
    logprobs, entropy = Actor(model).evaluate(sequence, prompt_length, length, sampling, row_tokens=row_tokens)
    for i, (expected, spread) in enumerate(by_hand(model, rows, temperature)):
        torch.testing.assert_close(logprobs[i, : LENGTHS[i]], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entropy[i, : LENGTHS[i]], spread, atol=1e-5, rtol=1e-5)
        assert not logprobs[i, LENGTHS[i] :].any()


def gradient(model, run):
    model.zero_grad()
    run().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_packing_and_pieces_of_logits_change_no_gradient(model, batch, monkeypatch):
    _, sequence, prompt_length, length = batch

    def loss(row_tokens):
        logprobs, entropy = Actor(model).evaluate(
            sequence, prompt_length, length, Sampling(), row_tokens=row_tokens, entropy=True
        )
        return (logprobs * torch.arange(1, logprobs.shape[1] + 1)).sum() + 0.1 * entropy.sum()

    padded = gradient(model, lambda: loss(None))
    torch.testing.assert_close(gradient(model, lambda: loss(24)), padded, atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(actors, "_LOGITS", 3 * model.config.vocab_size)  # three tokens a piece
    torch.testing.assert_close(gradient(model, lambda: loss(None)), padded, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("entropy", [True, False])
def test_gradients_through_logprobs_and_entropies_are_the_exact_ones(entropy):
    source = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(5, 11, generator=source, dtype=torch.float64)).requires_grad_()
    tokens = torch.randint(11, (5,), generator=source)
    assert torch.autograd.gradcheck(lambda x: judge(x, tokens, entropy=True), (logits,))
    logprobs, entropies = judge(logits, tokens, entropy=entropy)
    every = logits.log_softmax(-1)
    torch.testing.assert_close(logprobs, every.gather(1, tokens[:, None])[:, 0])
    torch.testing.assert_close(entropies, -(every.exp() * every).sum(-1))
    assert entropies.requires_grad == entropy
    (found,) = torch.autograd.grad(logprobs.sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad(every.gather(1, tokens[:, None]).sum(), logits)
    torch.testing.assert_close(found, expected)


def test_critic_begins_at_zero_and_values_what_stands_before_each_token(model, batch):
    rows, sequence, prompt_length, length = batch
    critic = Critic(model)
    assert not critic.values(sequence, prompt_length, length).any()
    torch.nn.init.normal_(critic.value.weight)
    padded = critic.values(sequence, prompt_length, length)
    torch.testing.assert_close(
        critic.values(sequence, prompt_length, length, row_tokens=20), padded, atol=1e-5, rtol=1e-5
    )
    for i, row in enumerate(rows):
        states = model.model(input_ids=row[None]).last_hidden_state[0, PROMPTS[i] - 1 : -1]
        torch.testing.assert_close(padded[i, : LENGTHS[i]], states @ critic.value.weight[0], atol=1e-5, rtol=1e-5)
    # the last token of a response is not seen by any value
    changed = sequence.clone()
    changed[0, PROMPTS[0] + LENGTHS[0] - 1] = 9
    assert torch.equal(critic.values(changed, prompt_length, length)[0], padded[0])
