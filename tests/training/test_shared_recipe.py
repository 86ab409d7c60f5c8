"""What recipes of all workloads have in common: faults told at once, placements by name, coming back from a run."""

from __future__ import annotations

import dataclasses

import pytest

from embodied.errors import ConfigurationError
from embodied.runs.options import CheckpointConfig
from embodied.scheduler.options import ClusterConfig
from embodied.training.placement import named_plan
from embodied.training.recipe import SHARED_SECTIONS, parse_sections, read_run_config, refuse
from tests.training.toy_workload import BeanGoal, BeanRecipe, BeanWorkload, Every

SECTIONS = {"goal": BeanGoal, **SHARED_SECTIONS}


def test_sections_become_records_with_defaults_and_notes_are_for_the_reader():
    parts = parse_sections({"goal": {"beans": 7}, "checkpoint": None, "needs": "a field", "name": "beans"}, SECTIONS)
    assert parts["goal"] == BeanGoal(beans=7)
    assert parts["checkpoint"] == CheckpointConfig()
    assert (parts["seed"], parts["description"]) == (0, "")
    chosen = parse_sections({"goal": {"beans": 7}}, {"goal": lambda given: {7: BeanGoal}[given["beans"]]})
    assert chosen["goal"].beans == 7


def test_every_fault_is_told_at_once():
    values = {"seed": -1, "gaol": {}, "goal": {"bean": 3}, "checkpoint": {"every": 0}, "run": 5}
    with pytest.raises(ConfigurationError) as caught:
        parse_sections(values, SECTIONS, "workload")
    faults = str(caught.value)
    for words in ("Did you mean 'goal'", "workload", "'seed' is -1", "goal.bean", "every is 0", "'run' is 5"):
        assert words in faults, words


@pytest.mark.parametrize(
    ("goal", "words"),
    [({"in_a_row": 0}, "in_a_row is 0"), ({"minutes": 0.0}, "minutes is 0.0; it must be above 0")],
)
def test_goals_that_never_come_are_refused(goal, words):
    with pytest.raises(ConfigurationError, match=words):
        parse_sections({"goal": goal}, SECTIONS)


def test_a_goal_without_evaluations_and_a_device_that_is_not_there_are_refused_together():
    class Elsewhere(BeanRecipe):
        def device(self):
            raise ConfigurationError("no such device")

    with pytest.raises(ConfigurationError, match=r"(?s)too few beans.*evaluation\.every=0 makes none.*no such device"):
        refuse(Elsewhere(goal=BeanGoal(at_least=1.0), evaluation=Every(every=0)), ["too few beans"])
    refuse(BeanRecipe(), [])


def test_the_recipe_of_a_run_comes_back_or_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigurationError, match="is not a run folder"):
        read_run_config(tmp_path)
    for text in ("seed: [", "seed: 1", "- 1"):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ConfigurationError, match="is not the configuration of a run"):
            read_run_config(tmp_path)
    (tmp_path / "config.yaml").write_text("name: beans\nseed: 3\n")
    assert read_run_config(tmp_path) == ("beans", {"name": "beans", "seed": 3})


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)


def placed(meant: str, **options):
    workload = BeanWorkload()
    flow = workload.flow(workload.placed())
    for name in flow.stages:
        flow.stages[name] = dataclasses.replace(flow.stages[name], needs="accelerator")
    plan = named_plan(flow, ClusterConfig(**options), meant, acting="field")
    return plan.launcher, *(stage.devices for stage in plan.stages.values())


@pytest.mark.parametrize(
    ("placement", "field", "learner"),
    [("shared", "0123", "0123"), ("split", "01", "23"), ("mixed", "01", "0123")],
)
def test_who_acts_has_the_first_half_of_the_devices(gpus, placement, field, learner):
    expected = tuple(tuple(f"cuda:{i}" for i in numbers) for numbers in (field, learner))
    assert placed("cuda:0", placement=placement) == ("ray", *expected)


def test_numbers_of_workers_and_devices_stand_above_the_placement(gpus):
    assert placed("cpu") == ("inline", ("cpu",), ("cpu",))
    assert placed("cuda:0", workers={"field": 3, "learner": 1})[1:] == (("cuda:0", "cuda:1", "cuda:2"), ("cuda:0",))
    assert placed("cuda:0", devices={"learner": ("cuda:3",)})[2] == ("cuda:3",)
    with pytest.raises(
        ConfigurationError, match=r"between stage field and those that learn, but there is one \(cuda:1\)"
    ):
        placed("cuda:1", device="cuda:1", placement="split")
