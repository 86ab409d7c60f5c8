"""The native engine against transformers: the same tokens, the same log-probabilities, whatever shares the batch."""

from __future__ import annotations

import asyncio
import copy
import dataclasses

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from embodied.errors import ConfigurationError, CorrectnessAlarm
from reasoning.generation import Finish, Request, Sampling
from reasoning.generation.decoder import Shape
from reasoning.generation.feedforward import Dense, grouped
from reasoning.generation.linear import Linear
from reasoning.generation.native import NativeEngine, collect
from reasoning.generation.sampling import token_logprobs

VOCABULARY = 97
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    # large, so that random models have clear preferences
    "initializer_range": 0.15,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
EXPERTS = {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False)),
    "llama3 rope": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=LLAMA3_ROPE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True)),
    "qwen3 experts": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL, **EXPERTS, norm_topk_prob=True)),
    # the middle layer has one block for all tokens, and the experts' weights do not add up to 1
    "qwen3 mixed": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL, **EXPERTS, mlp_only_layers=[1])),
}
GREEDY = Sampling(decode="greedy", max_new_tokens=20)


def build(name: str, seed: int = 0):
    torch.manual_seed(seed)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "bias" in parameter_name or "norm" in parameter_name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def model():
    return build("qwen2")


def prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist())


def requests(count: int, sampling: Sampling, first: int = 0) -> list[Request]:
    return [Request(first + i, prompt(3 + i % 7, first + i), sampling, seed=1000 + first + i) for i in range(count)]


def engine(model, **options) -> NativeEngine:
    return NativeEngine(model, **{"eos": (1,), "slots": 4, "capacity": 128, **options})


def generate(model, wanted, **options):
    return asyncio.run(collect(engine(model, **options), wanted))


def full_logprobs(model, response) -> torch.Tensor:
    """What one pass over prompt and response says about the response's tokens."""
    start = len(response.request.prompt)
    sequence = torch.tensor([[*response.request.prompt, *response.tokens.tolist()]])
    with torch.no_grad():
        logits = model(sequence).logits[0, start - 1 : -1]
    return token_logprobs(logits, response.tokens, response.request.sampling)


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


def test_short_responses_come_before_long_ones_and_leave_their_slots(model):
    long = [Request(0, prompt(5, 0), Sampling(max_new_tokens=60), seed=0)]
    short = [Request(i, prompt(5, i), Sampling(max_new_tokens=4), seed=i) for i in range(1, 20)]

    async def order() -> list[int]:
        return [r.request.id async for r in engine(model, eos=(), slots=2).generate([*long, *short])]

    # one slot is the long one's; the other serves fifteen short ones in the meantime
    assert asyncio.run(order())[:14] == list(range(1, 15))


def test_two_streams_share_the_batch(model):
    own = engine(model, eos=())

    async def both():
        return await asyncio.gather(
            collect(own, requests(5, Sampling(max_new_tokens=8))),
            collect(own, requests(5, Sampling(max_new_tokens=8), first=50)),
        )

    first, second = asyncio.run(both())
    assert [r.request.id for r in first + second] == [*range(5), *range(50, 55)]


def test_new_weights_drop_caches_and_continue_what_is_under_way(model):
    other = build("qwen2", seed=9)
    own = engine(model, eos=(), slots=2)
    wanted = [Request(i, prompt(6, 5), Sampling(max_new_tokens=12), seed=i) for i in range(4)]

    async def run():
        responses = []
        stream = own.generate(wanted)
        task = asyncio.ensure_future(anext(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        own.update_weights(other.state_dict(), version=1)
        responses.append(await task)
        responses += [r async for r in stream]
        return sorted(responses, key=lambda r: r.request.id)

    responses = asyncio.run(run())
    for response in responses[:2]:
        assert set(response.versions.tolist()) == {0, 1}
        assert response.versions.diff().min() >= 0
        assert len(response.tokens) == 12
        after = response.versions == 1
        torch.testing.assert_close(
            response.logprobs[~after], full_logprobs(model, response)[~after], atol=2e-5, rtol=1e-4
        )
        torch.testing.assert_close(
            response.logprobs[after], full_logprobs(other, response)[after], atol=2e-5, rtol=1e-4
        )
    for response in responses[2:]:  # their prompt had been worked out with the old weights
        assert set(response.versions.tolist()) == {1}
        torch.testing.assert_close(response.logprobs, full_logprobs(other, response), atol=2e-5, rtol=1e-4)


def test_engine_keeps_its_own_weights_while_the_model_trains(model):
    trained = copy.deepcopy(model)
    own = engine(trained)
    before = asyncio.run(collect(own, requests(3, GREEDY)))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.zero_()
    after = asyncio.run(collect(own, requests(3, GREEDY)))
    assert [r.tokens.tolist() for r in before] == [r.tokens.tolist() for r in after]


@pytest.mark.parametrize("change", ["missing", "renamed", "reshaped"])
def test_wrong_weights_are_refused_by_name(model, change):
    weights = dict(model.state_dict())
    taken = weights.pop("model.layers.1.mlp.up_proj.weight")
    if change == "renamed":
        weights["model.layers.1.mlp.up.weight"] = taken
    if change == "reshaped":
        weights["model.layers.1.mlp.up_proj.weight"] = taken[:-1]
    own = engine(model)
    with pytest.raises(CorrectnessAlarm, match="up"):
        own.update_weights(weights, version=1)
    assert own.version == 0


def test_aborted_responses_come_out_and_can_be_continued_to_the_same_end(model):
    wanted = requests(6, Sampling(max_new_tokens=30))
    whole = generate(model, wanted, eos=())
    own = engine(model, eos=(), slots=4)

    async def interrupted():
        task = asyncio.ensure_future(collect(own, wanted))
        for _ in range(11):
            await asyncio.sleep(0)
        own.abort()
        return await task

    partial = asyncio.run(interrupted())
    assert {r.finish for r in partial} == {Finish.ABORTED}
    assert [len(r.tokens) > 0 for r in partial] == [True] * 4 + [False] * 2
    continued = asyncio.run(collect(own, [dataclasses.replace(r.request, begun=r) for r in partial]))
    for a, b in zip(whole, continued, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        torch.testing.assert_close(a.logprobs, b.logprobs, atol=1e-5, rtol=1e-5)


def test_abort_of_one_leaves_the_others(model):
    own = engine(model, eos=())

    async def run():
        task = asyncio.ensure_future(collect(own, requests(6, Sampling(max_new_tokens=10))))
        for _ in range(4):
            await asyncio.sleep(0)
        own.abort([1, 5, 777])
        return await task

    assert [r.finish for r in asyncio.run(run())] == [
        Finish.ABORTED if i in (1, 5) else Finish.LENGTH for i in range(6)
    ]


def test_leaving_a_stream_frees_its_slots(model):
    own = engine(model)

    async def leave():
        stream = own.generate(requests(9, Sampling(max_new_tokens=50)))
        await anext(stream)
        await stream.aclose()

    asyncio.run(leave())
    assert (own._rows, len(own._waiting)) == ([], 0)


def test_pause_holds_every_stream_until_resume(model):
    own = engine(model, eos=())

    async def run():
        task = asyncio.ensure_future(collect(own, requests(2, Sampling(max_new_tokens=10))))
        await asyncio.sleep(0)
        own.pause()
        for _ in range(50):
            await asyncio.sleep(0)
        held = [len(row.tokens) for row in own._rows]
        own.resume()
        return held, await task

    held, responses = asyncio.run(run())
    assert all(length < 4 for length in held)
    assert [len(r.tokens) for r in responses] == [10, 10]


def test_abort_reaches_a_paused_stream(model):
    own = engine(model, eos=())

    async def run():
        task = asyncio.ensure_future(collect(own, requests(3, Sampling(max_new_tokens=50))))
        await asyncio.sleep(0)
        own.pause()
        await asyncio.sleep(0)
        own.abort()
        return await asyncio.wait_for(task, timeout=5)

    assert {r.finish for r in asyncio.run(run())} == {Finish.ABORTED}


def test_requests_that_cannot_be_served_are_refused_with_the_numbers(model):
    too_long = Request(0, prompt(100, 0), Sampling(max_new_tokens=50), seed=0)
    with pytest.raises(ConfigurationError, match=r"150 tokens .* capacity is 128"):
        generate(model, [too_long])
    with pytest.raises(ConfigurationError, match="ids must differ"):
        generate(model, requests(1, GREEDY) * 2)
    with pytest.raises(ConfigurationError, match="stop texts need"):
        generate(model, requests(1, Sampling(stop=("x",), max_new_tokens=5)))
    with pytest.raises(ConfigurationError, match=r"513 tokens .* at most 512"):
        engine(model, capacity=513)
    with pytest.raises(ConfigurationError, match="empty prompt"):
        generate(model, [Request(0, (), GREEDY, seed=0)])


def test_other_architectures_are_refused_with_those_that_work():
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50))
    with pytest.raises(ConfigurationError, match=r"'gpt2'.*llama, mistral, qwen2, qwen3"):
        engine(other)


def test_bfloat16_follows_the_model_cast_to_it(model):
    cast = copy.deepcopy(model).to(torch.bfloat16)
    responses = generate(cast, requests(6, Sampling(max_new_tokens=16)))
    gaps = torch.cat([(r.logprobs - full_logprobs(cast, r)).abs() for r in responses])
    assert gaps.mean() < 0.05


def test_a_model_that_overflows_is_an_alarm(model):
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with pytest.raises(CorrectnessAlarm, match="not finite"):
        generate(broken, requests(1, GREEDY))


def test_an_engine_that_slept_goes_on_with_the_weights_it_is_given(model):
    engine = NativeEngine(model, eos=(1,), slots=4, capacity=64)
    first = asyncio.run(collect(engine, requests(3, GREEDY)))
    engine.sleep()
    engine.update_weights(model.state_dict(), version=5)
    again = asyncio.run(collect(engine, requests(3, GREEDY)))
    assert [r.tokens.tolist() for r in again] == [r.tokens.tolist() for r in first]
    assert all((r.versions == 5).all() for r in again)

    async def sleep_under_way():
        async for _ in engine.generate(requests(9, GREEDY)):
            with pytest.raises(ConfigurationError, match="under way"):
                engine.sleep()
            break

    asyncio.run(sleep_under_way())
