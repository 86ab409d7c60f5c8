import dataclasses

import pytest

from embodied.errors import ConfigurationError
from embodied.scheduler import ACCELERATOR, Flow, Input, Output, Plan, Route, StagePlan, Worker
from embodied.scheduler.plan import single_device_plan


class Source(Worker):
    numbers = Output(int)


class Middle(Worker):
    numbers = Input(int)
    doubled = Output(int)


class Sink(Worker):
    numbers = Input(int)


class Echo(Worker):
    asked = Input(int)
    answered = Output(int)


class Asker(Worker):
    asked = Output(int)
    answered = Input(int)
    result = Output(int)


def chain() -> Flow:
    flow = Flow("chain")
    source = flow.stage("source", Source, scales_with="items")
    middle = flow.stage("middle", Middle, scales_with="items", needs=ACCELERATOR)
    sink = flow.stage("sink", Sink, scales_with="items")
    flow.edge(source.numbers, middle.numbers)
    flow.edge(middle.doubled, sink.numbers)
    return flow


def test_levels_are_in_the_order_data_passes_and_cycles_stay_together():
    flow = Flow("cycle")
    sink = flow.stage("sink", Sink, scales_with="items")
    asker = flow.stage("asker", Asker, scales_with="items")
    echo = flow.stage("echo", Echo, scales_with="items")
    flow.edge(asker.asked, echo.asked)
    flow.edge(echo.answered, asker.answered)
    flow.edge(asker.result, sink.numbers)
    assert flow.levels() == [["asker", "echo"], ["sink"]]
    assert chain().levels() == [["source"], ["middle"], ["sink"]]


def test_faults_of_a_flow_are_refused_by_name():
    flow = chain()
    with pytest.raises(ConfigurationError, match="already has a stage 'sink'"):
        flow.stage("sink", Sink, scales_with="items")
    with pytest.raises(AttributeError, match="Did you mean 'numbers'"):
        _ = flow.stages["sink"].number
    with pytest.raises(ConfigurationError, match="already has an edge"):
        flow.edge(flow.stages["source"].numbers, flow.stages["sink"].numbers)
    with pytest.raises(ConfigurationError, match="from an Output to an Input"):
        flow.edge(flow.stages["sink"].numbers, flow.stages["sink"].numbers)
    flow.stage("lonely", Sink, scales_with="items")
    with pytest.raises(ConfigurationError, match=r"nothing feeds lonely\.numbers"):
        flow.validate()


def test_an_edge_joins_equal_types_only():
    class Words(Worker):
        words = Output(str)

    flow = Flow("types")
    words = flow.stage("words", Words, scales_with="items")
    sink = flow.stage("sink", Sink, scales_with="items")
    with pytest.raises(ConfigurationError, match="hands on str, the input takes int"):
        flow.edge(words.words, sink.numbers)


def test_a_plan_survives_its_file_and_is_checked_against_the_flow():
    flow = chain()
    plan = single_device_plan(flow, "cuda:0", slots=2)
    assert plan.stages["middle"].devices == ("cuda:0",)
    assert plan.stages["source"].devices == ("cpu",)
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(ConfigurationError, match=r"stage 'sinc'.*Did you mean 'sink'"):
        Plan(flow="chain", launcher="inline", stages={"sinc": StagePlan(devices=("cpu",))}).check(flow)
    with pytest.raises(ConfigurationError, match="does not place stage"):
        Plan(flow="chain", launcher="inline", stages={}).check(flow)
    with pytest.raises(ConfigurationError, match=r"plan\.stages\.middle\.slot"):
        Plan.from_json(plan.to_json().replace('"slots"', '"slot"'))
    with pytest.raises(ConfigurationError, match="not JSON"):
        Plan.from_json("{")


@pytest.mark.parametrize(
    ("stage", "changes", "words"),
    [
        ("sink", {"granularity": 4}, ["stage sink granularity=4", "Sink works on a round as a whole"]),
        ("source", {"slots": 2}, ["stage source slots=2"]),
        ("source", {"processes": 2}, ["stage source processes=2"]),
    ],
)
def test_what_a_worker_does_not_follow_is_refused_not_ignored(stage, changes, words):
    flow = chain()
    plan = single_device_plan(flow, "cpu", slots=2)
    stages = {**plan.stages, stage: dataclasses.replace(plan.stages[stage], **changes)}
    with pytest.raises(ConfigurationError) as caught:
        dataclasses.replace(plan, stages=stages).check(flow)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_worker_that_follows_slots_gets_them_and_others_do_not():
    class Slotted(Sink):
        follows = frozenset({"slots"})

    flow = Flow("slotted")
    source = flow.stage("source", Source, scales_with="items")
    sink = flow.stage("sink", Slotted, scales_with="items")
    flow.edge(source.numbers, sink.numbers)
    plan = single_device_plan(flow, "cpu", slots=3)
    assert {name: stage.slots for name, stage in plan.stages.items()} == {"source": 1, "sink": 3}
    plan.check(flow)
    with pytest.raises(ConfigurationError, match="is for flow 'slotted', but the flow to run is 'chain'"):
        plan.check(chain())
    with pytest.raises(ValueError, match="slots=0 and granularity=None must be at least 1"):
        StagePlan(devices=("cpu",), slots=0)


def test_an_edge_that_holds_nothing_is_refused_and_one_to_whoever_is_free_holds_little():
    flow = Flow("capacities")
    source = flow.stage("source", Source, scales_with="items")
    first, second, third = (flow.stage(name, Sink, scales_with="items") for name in "abc")
    with pytest.raises(ConfigurationError, match="has capacity 0"):
        flow.edge(source.numbers, first.numbers, capacity=0)
    flow.edge(source.numbers, first.numbers)
    flow.edge(source.numbers, second.numbers, route=Route.READY)
    flow.edge(source.numbers, third.numbers, route=Route.READY, capacity=1)
    assert [(edge.room, edge.ahead) for edge in flow.edges] == [(1024, None), (1024, 2), (1024, 1)]
