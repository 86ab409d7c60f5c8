"""The native engine against transformers: the same tokens, the same log-probabilities, whatever shares the batch."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from transformers import Qwen3MoeConfig

from reasoning.generation import Finish, Request, Sampling
from reasoning.generation.decoder import Shape
from reasoning.generation.feedforward import Dense, grouped
from reasoning.generation.linear import Linear
from reasoning.generation.native import collect
from reasoning.generation.sampling import token_logprobs
from tests.reasoning.generation_models import (
    GREEDY,
    MODELS,
    VOCABULARY,
    build,
    engine,
    full_logprobs,
    generate,
    prompt,
    requests,
)


@pytest.fixture(scope="module")
def model():
    return build("qwen2")


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_equal_those_of_transformers(name):
    model = build(name)
    for response in generate(model, requests(10, GREEDY)):
        ids = torch.tensor([response.request.prompt])
        expected = model.generate(ids, do_sample=False, max_new_tokens=20, attention_mask=torch.ones_like(ids))
        assert response.tokens.tolist() == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(max_new_tokens=24), Sampling(max_new_tokens=24, temperature=0.7, top_k=20, top_p=0.9)],
    ids=["plain", "filtered"],
)
def test_logprobs_are_those_of_the_sampling_distribution(name, sampling):
    model = build(name)
    for response in generate(model, requests(9, sampling)):
        assert response.logprobs.dtype is torch.float32
        torch.testing.assert_close(response.logprobs, full_logprobs(model, response), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_say_what_the_experts_say_one_by_one(dtype):
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype) / 8

    gate_up, down, rows = random(5, 48, 32), random(5, 32, 24), random(11, 32)
    counts = torch.tensor([3, 0, 6, 2, 0])
    together = grouped(rows, gate_up.transpose(1, 2), down.transpose(1, 2), counts)
    each = [
        Dense(Linear(up), Linear(back))(part)
        for up, back, part in zip(gate_up, down, rows.split(counts.tolist()), strict=True)
        if len(part)
    ]
    torch.testing.assert_close(together, torch.cat(each))


def test_the_published_mixture_of_experts_is_accepted():
    config = Qwen3MoeConfig(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
        vocab_size=151936, max_position_embeddings=40960, tie_word_embeddings=False,
    )  # fmt: skip
    shape = Shape.of(config)  # of Qwen3-30B-A3B
    assert (shape.layers, shape.size, shape.chosen, shape.chosen_normed) == (48, 128, 8, True)


def test_a_request_gives_the_same_tokens_alone_and_in_any_company(model):
    wanted = requests(12, Sampling(max_new_tokens=30))
    together = generate(model, wanted, slots=5)
    reversed_order = generate(model, wanted[::-1], slots=3)[::-1]
    alone = [generate(model, [request], slots=1)[0] for request in wanted]
    for a, b, c in zip(together, reversed_order, alone, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() == c.tokens.tolist()
        torch.testing.assert_close(a.logprobs, c.logprobs, atol=1e-5, rtol=1e-5)


def test_rows_of_one_batch_have_their_own_sampling(model):
    kinds = [
        GREEDY,
        Sampling(temperature=0.3, max_new_tokens=5),
        Sampling(top_k=2, max_new_tokens=40),
        Sampling(top_p=0.5, max_new_tokens=9),
    ]
    wanted = [dataclasses.replace(r, sampling=k) for r, k in zip(requests(4, GREEDY), kinds, strict=True)]
    together = generate(model, wanted)
    for request, response in zip(wanted, together, strict=True):
        assert generate(model, [request])[0].tokens.tolist() == response.tokens.tolist()
        assert len(response.tokens) <= request.sampling.max_new_tokens


def test_tokens_are_drawn_with_their_probabilities(model):
    sampling = Sampling(max_new_tokens=1, temperature=2.0)
    wanted = [Request(i, prompt(5, 0), sampling, seed=i) for i in range(4000)]
    drawn = torch.stack([r.tokens[0] for r in generate(model, wanted, slots=64)])
    with torch.no_grad():
        expected = (model(torch.tensor([prompt(5, 0)])).logits[0, -1] / 2.0).softmax(-1)
    observed = drawn.bincount(minlength=VOCABULARY) / len(drawn)
    deviation = (expected * (1 - expected) / len(drawn)).sqrt()
    assert ((observed - expected).abs() < 4.5 * deviation + 1e-3).all()


def test_top_k_and_top_p_keep_the_likeliest(model):
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    tokens = torch.tensor([[0, 1, 2, 3]])

    def probabilities(**options) -> list[float]:
        given = logits[:, None].expand(1, 4, 4)
        return [round(p, 4) for p in token_logprobs(given, tokens, Sampling(**options)).exp()[0].tolist()]

    assert probabilities(top_k=2) == [0.625, 0.375, 0.0, 0.0]
    assert probabilities(top_p=0.8) == [0.625, 0.375, 0.0, 0.0]
    assert probabilities(top_p=0.81) == [0.5263, 0.3158, 0.1579, 0.0]
    assert probabilities(top_p=0.1) == [1.0, 0.0, 0.0, 0.0]
    assert probabilities(top_k=3, top_p=0.9) == [0.5263, 0.3158, 0.1579, 0.0]


def test_end_of_sequence_is_part_of_the_response_and_the_limit_truncates(model):
    responses = generate(model, requests(40, Sampling(max_new_tokens=60, temperature=2.0)))
    finishes = {r.finish for r in responses}
    assert finishes == {Finish.EOS, Finish.LENGTH}
    for response in responses:
        ended = response.finish is Finish.EOS
        assert (response.tokens[-1] == 1) == ended
        assert not (response.tokens[:-1] == 1).any()
        assert response.truncated == (not ended)
        assert ended or len(response.tokens) == 60


class Letters:
    """A tokenizer whose token i is the letter i of an alphabet; enough to look for stop texts."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(0x100 + token) for token in tokens)


def test_a_stop_text_ends_a_response_where_it_is_complete(model):
    letters = Letters()
    free = generate(model, requests(6, Sampling(max_new_tokens=30)), eos=())
    for response in free:
        stop = letters.decode(response.tokens[10:13].tolist())
        text = letters.decode(response.tokens.tolist())
        sampling = dataclasses.replace(response.request.sampling, stop=(stop, "never"))
        again = dataclasses.replace(response.request, sampling=sampling)
        (stopped,) = generate(model, [again], eos=(), tokenizer=letters)
        assert stopped.finish is Finish.STOP
        assert letters.decode(stopped.tokens.tolist()) == text[: text.index(stop) + 3]


def test_a_shared_prompt_is_worked_out_once(model):
    own = engine(model, slots=3)
    lengths: list[int] = []
    prefill = own._decoder.prefill
    own._decoder.prefill = lambda prompts: (lengths.extend(map(len, prompts)), prefill(prompts))[1]
    group = [Request(i, prompt(9, 0), Sampling(max_new_tokens=6), seed=i) for i in range(8)]
    other = Request(99, prompt(4, 1), Sampling(max_new_tokens=6), seed=0)
    responses = asyncio.run(collect(own, [*group, other]))
    assert lengths == [9, 4]
    assert len({tuple(r.tokens.tolist()) for r in responses[:8]}) > 1
    for response in responses:
        torch.testing.assert_close(response.logprobs, full_logprobs(model, response), atol=2e-5, rtol=1e-4)
