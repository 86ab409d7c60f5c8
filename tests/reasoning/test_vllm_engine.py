"""The engine `vllm` keeps the contract: against a stand-in everywhere, against vLLM itself where it is installed."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from embodied.errors import ConfigurationError, CorrectnessAlarm
from reasoning.generation import Finish, Request, Sampling
from reasoning.generation.native import collect
from reasoning.generation.sampling import token_logprobs
from reasoning.generation.vllm import VllmEngine
from reasoning.models.tiny import tiny_tokenizer
from tests.reasoning import fake_vllm

INSTALLED = importlib.util.find_spec("vllm") is not None
GREEDY = Sampling(decode="greedy", max_new_tokens=12)


@pytest.fixture(params=["stand-in", pytest.param("vLLM", marks=pytest.mark.slow)])
def vllm(request, monkeypatch):
    if request.param == "stand-in":
        fake_vllm.install(monkeypatch)
    elif not INSTALLED:
        pytest.skip("vLLM is not installed")


def build(seed: int = 0) -> LlamaForCausalLM:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.15,
    )
    return LlamaForCausalLM(config).eval()


def engine(model, **options) -> VllmEngine:
    options = {"eos": (1,), "slots": 4, "capacity": 128, "cache_gib": 0.25, "eager": True, **options}
    return VllmEngine(model, **options)


def requests(count: int, sampling: Sampling) -> list[Request]:
    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(3, 250, (3 + i % 5,), generator=generator).tolist() for i in range(count)]
    return [Request(i, tuple(prompt), sampling, seed=100 + i) for i, prompt in enumerate(prompts)]


def full_logprobs(model, response) -> torch.Tensor:
    start = len(response.request.prompt)
    sequence = torch.tensor([[*response.request.prompt, *response.tokens.tolist()]])
    with torch.no_grad():
        logits = model(sequence).logits[0, start - 1 : -1]
    return token_logprobs(logits, response.tokens, response.request.sampling)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=1e-3)


def test_greedy_tokens_and_their_logprobs_are_those_of_transformers(vllm):
    model = build()
    for response in asyncio.run(collect(engine(model), requests(6, GREEDY))):
        ids = torch.tensor([response.request.prompt])
        expected = model.generate(ids, do_sample=False, max_new_tokens=12, attention_mask=torch.ones_like(ids))
        assert response.tokens.tolist() == expected[0, ids.shape[1] :].tolist()
        close(response.logprobs, full_logprobs(model, response))
        assert set(response.versions.tolist()) == {0}


def test_sampled_tokens_have_the_logprobs_of_the_distribution_drawn_from(vllm):
    model = build()
    sampling = Sampling(temperature=0.7, top_k=20, top_p=0.9, max_new_tokens=40)
    own = engine(model)
    responses = asyncio.run(collect(own, requests(8, sampling)))
    for response in responses:
        close(response.logprobs, full_logprobs(model, response))
        ended = response.finish is Finish.EOS
        assert (response.tokens[-1] == 1) == ended
        assert ended or (response.finish is Finish.LENGTH and len(response.tokens) == 40)
    again = asyncio.run(collect(own, requests(8, sampling)))
    assert [r.tokens.tolist() for r in again] == [r.tokens.tolist() for r in responses]


def test_a_stop_text_ends_a_response(vllm):
    model, tokenizer = build(), tiny_tokenizer()
    free = asyncio.run(collect(engine(model, eos=()), requests(3, Sampling(max_new_tokens=40))))
    letters = sorted({letter for letter in tokenizer.decode(free[0].tokens.tolist()) if letter.isascii()})
    assert letters
    sampling = Sampling(max_new_tokens=40, stop=(letters[0],))
    (stopped,) = asyncio.run(
        collect(engine(model, eos=(), tokenizer=tokenizer), [dataclasses.replace(free[0].request, sampling=sampling)])
    )
    assert stopped.finish is Finish.STOP
    assert letters[0] in tokenizer.decode(stopped.tokens.tolist())
    assert letters[0] not in tokenizer.decode(stopped.tokens[:-1].tolist())


def test_new_weights_continue_what_is_under_way_and_every_token_knows_its_version(vllm):
    model, other = build(), build(seed=9)
    own = engine(model, eos=(), slots=2)

    async def run():
        stream = own.generate(requests(4, Sampling(max_new_tokens=12)))
        first = asyncio.ensure_future(anext(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        own.update_weights(other.state_dict(), version=1)
        return [await first, *[response async for response in stream]]

    responses = sorted(asyncio.run(run()), key=lambda response: response.request.id)
    for response in responses[:2]:
        assert set(response.versions.tolist()) == {0, 1}
        assert response.versions.diff().min() >= 0
        after = response.versions == 1
        close(response.logprobs[~after], full_logprobs(model, response)[~after])
        close(response.logprobs[after], full_logprobs(other, response)[after])
    for response in responses[2:]:
        assert set(response.versions.tolist()) == {1}
        close(response.logprobs, full_logprobs(other, response))


def test_aborted_responses_come_out_and_can_be_continued(vllm):
    model = build()
    own = engine(model, eos=(), slots=2)

    async def run():
        task = asyncio.ensure_future(collect(own, requests(3, Sampling(max_new_tokens=10))))
        for _ in range(5):
            await asyncio.sleep(0)
        own.abort()
        partial = await task
        whole = [dataclasses.replace(r.request, begun=r if len(r.tokens) else None) for r in partial]
        return partial, await collect(own, whole)

    partial, whole = asyncio.run(run())
    assert {response.finish for response in partial} == {Finish.ABORTED}
    assert [len(response.tokens) > 0 for response in partial] == [True, True, False]
    for begun, response in zip(partial, whole, strict=True):
        assert response.tokens[: len(begun.tokens)].tolist() == begun.tokens.tolist()
        assert len(response.tokens) == 10
        close(response.logprobs, full_logprobs(model, response))


def test_pause_holds_every_stream_until_resume(vllm):
    own = engine(build(), eos=())

    async def run():
        task = asyncio.ensure_future(collect(own, requests(2, Sampling(max_new_tokens=10))))
        await asyncio.sleep(0)
        own.pause()
        for _ in range(20):
            await asyncio.sleep(0)
        held = [len(row.tokens) for row in own._rows.values()]
        own.resume()
        return held, await task

    held, responses = asyncio.run(run())
    assert all(length < 4 for length in held)
    assert [len(response.tokens) for response in responses] == [10, 10]


def test_abort_reaches_a_paused_stream_and_leaving_one_frees_it(vllm):
    own = engine(build(), eos=())

    async def run():
        task = asyncio.ensure_future(collect(own, requests(3, Sampling(max_new_tokens=50))))
        await asyncio.sleep(0)
        own.pause()
        await asyncio.sleep(0)
        own.abort()
        aborted = await asyncio.wait_for(task, timeout=5)
        own.resume()
        stream = own.generate(requests(3, Sampling(max_new_tokens=3)))
        await anext(stream)
        await stream.aclose()
        return aborted

    assert {response.finish for response in asyncio.run(run())} == {Finish.ABORTED}
    assert own._rows == {}


def test_what_cannot_be_served_is_refused(vllm):
    model = build()
    own = engine(model)
    warm = dataclasses.replace(GREEDY, temperature=0.5)
    for wanted, said in (
        (requests(1, warm), "greedy tokens at temperature 1 only"),
        (requests(1, dataclasses.replace(GREEDY, max_new_tokens=126)), "capacity is 128"),
        (requests(1, GREEDY) * 2, "ids must differ"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            asyncio.run(collect(own, wanted))
    weights = dict(model.state_dict())
    weights["model.layers.1.mlp.up.weight"] = weights.pop("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(CorrectnessAlarm, match=r"2 of 20 differ.*model\.layers\.1\.mlp\.up"):
        own.update_weights(weights, version=1)
    assert own.version == 0


def test_another_kind_of_device_is_refused(monkeypatch):
    fake_vllm.install(monkeypatch)
    with pytest.raises(ConfigurationError, match="built for cpu"):
        engine(build(), device="cuda:0")


def test_an_engine_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'embodied-rl\[vllm\]'"):
        engine(build())
