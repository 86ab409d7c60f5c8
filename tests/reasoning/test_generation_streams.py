"""Streams of the native engine: order, sharing, new weights under way, abort, pause, and what is refused."""

from __future__ import annotations

import asyncio
import copy
import dataclasses

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from embodied.errors import ConfigurationError, CorrectnessAlarm
from reasoning.generation import Finish, Request, Sampling
from reasoning.generation.native import NativeEngine, collect
from tests.reasoning.generation_models import (
    GREEDY,
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


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-9, float("nan"), float("inf")])
def test_a_temperature_that_leaves_no_distribution_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        Sampling(temperature=temperature)


def test_the_lowest_temperature_is_nearly_greedy_and_finite(model):
    cold = dataclasses.replace(GREEDY, decode="sample", temperature=1e-6)
    greedy, drawn = (generate(model, requests(4, sampling)) for sampling in (GREEDY, cold))
    for one, other in zip(greedy, drawn, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert torch.isfinite(other.logprobs).all()


def test_an_engine_without_slots_is_refused_instead_of_waiting_for_ever(model):
    with pytest.raises(ConfigurationError, match="slots is 0"):
        engine(model, slots=0)
