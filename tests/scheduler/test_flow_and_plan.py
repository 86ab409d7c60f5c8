import pytest

from embodied.errors import ConfigurationError
from embodied.scheduler import ACCELERATOR, Flow, Input, Output, Plan, StagePlan, Worker
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
