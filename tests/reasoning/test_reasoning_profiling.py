"""From measured times of the reasoning flow to a profile, by hand values; and small recipes measured and followed."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest

from embodied.errors import ConfigurationError
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner.choose import compare
from embodied.scheduler.planner.profile import (
    Cluster,
    MemoryModel,
    NodeGroup,
    StageCost,
    SwitchModel,
    load_profile,
    parse_profile,
)
from embodied.training.planning import chosen_plan, kept_profile, profile_path
from reasoning.commands.main import main
from reasoning.training import profiling
from reasoning.training.flow import reasoning_flow
from reasoning.training.problems import ProblemSets
from reasoning.training.profiling import Memory, Timing, build_profile, sizes, variant_of
from reasoning.training.workload import ReasoningWorkload
from tests.reasoning.small_runs import metrics_of, run_small, save_small_model, small_recipe

PPO = {"advantage": "gae", "kl_coefficient": 0.01, "kl_in": "reward", "kl": "k1"}
STAGES = ("prompts", "generate", "reward", "reference", "critic", "learner")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("model"))


def profile_of(recipe, timings, tmp_path):
    return build_profile(recipe, reasoning_flow(recipe, ProblemSets((), (), ""), "cpu", tmp_path), timings)


def timing(prompts: int, memory: dict[str, Memory] | None = None) -> Timing:
    """Three equal iterations; every stage takes a fixed part and one that grows, generation shows half of its time."""
    seconds = {name: [0.1 * place + 0.01 * prompts * place] * 3 for place, name in enumerate(STAGES, start=1)}
    shown = {name: [value / 2 for value in found] for name, found in seconds.items()}
    return Timing(prompts, seconds, shown | {"prompts": [0.0] * 3}, starting=0.5, memory=memory or {})


def test_a_profile_gives_back_the_times_it_was_made_from(model, tmp_path):
    recipe = small_recipe(model, algorithm=PPO, rollout={"prompts": 8})
    profile = profile_of(recipe, [timing(8), timing(4), timing(2)], tmp_path)
    assert tuple(profile.stages) == STAGES
    assert [edge.source for edge in profile.edges] == list(STAGES[:-1])
    assert (profile.weights[0].source, profile.weights[0].target) == ("learner", "generate")
    for place, (name, stage) in enumerate(profile.stages.items(), start=1):
        assert stage.items == (8 if name == "prompts" else 32)  # four responses to each
        time = stage.on["cpu"].time
        per_prompt = time.per_item * (1 if name == "prompts" else 4)
        assert (time.fixed, per_prompt) == pytest.approx((0.1 * place, 0.01 * place))
        assert time.error < 0.01
    assert [stage.traced for stage in profile.stages.values()] == pytest.approx([0, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert (profile.unit, profile.amount, profile.start_seconds) == ("responses", 32.0, 0.5)
    assert parse_profile(profile.to_json(), "here") == profile


def test_memory_of_an_accelerator_belongs_to_the_stages_that_have_models(model, tmp_path, monkeypatch):
    class OnGpu:
        """The recipe on a machine with a GPU."""

        def __init__(self, recipe):
            self._recipe = recipe

        def __getattr__(self, name):
            return getattr(self._recipe, name)

        def device(self):
            return "cuda:0"

    monkeypatch.setattr(profiling, "this_machine", lambda *_, **__: Cluster(groups={"local": NodeGroup()}))
    memory = {name: Memory(state=4 << 30, working=1 << 30, switch=2.0) for name in STAGES if name != "prompts"}
    recipe = OnGpu(small_recipe(model, algorithm=PPO, rollout={"prompts": 8}))
    profile = profile_of(recipe, [timing(8, memory), timing(4)], tmp_path)
    assert [name for name, stage in profile.stages.items() if "accelerator" in stage.on] == [
        "generate",
        "reference",
        "critic",
        "learner",
    ]
    states = {
        name: stage.on["accelerator"].memory.state
        for name, stage in profile.stages.items()
        if stage.on.get("accelerator")
    }
    assert states == {"generate": "replicated", "reference": "replicated", "critic": "sharded", "learner": "sharded"}
    # there and back in two seconds
    assert profile.stages["learner"].on["accelerator"].switch.bytes_per_second == 4 << 30


def test_the_sizes_are_halves_that_the_batch_allows(model):
    assert sizes(small_recipe(model, rollout={"prompts": 8})) == [8, 4, 2]
    assert sizes(small_recipe(model, rollout={"prompts": 8}, learner={"global_batch": 16})) == [8, 4]
    assert sizes(small_recipe(model, rollout={"prompts": 600})) == [128, 64, 32]
    assert sizes(small_recipe(model, rollout={"prompts": 600}, learner={"global_batch": 2400})) == [600]
    warming = small_recipe(model, algorithm=PPO | {"critic_warmup": 5})
    assert variant_of(warming, 4).algorithm.critic_warmup == 0  # else the learner would seem to cost nothing


def test_a_profile_is_kept_for_what_decides_costs(model, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def path_of(**changes):
        return profile_path(ReasoningWorkload(small_recipe(model, **changes)))

    path = path_of()
    assert path.is_relative_to(tmp_path)
    assert path_of(seed=3, goal={"responses": 64}, evaluation={"size": 2}, cluster={"placement": "mixed"}) == path
    assert path_of(rollout={"slots": 4}) != path
    assert path_of(algorithm={"group_size": 2}) != path
    own = ReasoningWorkload(small_recipe(model), reward=lambda response, problem: 1.0)
    assert profile_path(own) != path
    assert kept_profile(own) is None


def test_a_plan_for_accelerators_is_one_that_the_flow_can_follow(model, tmp_path):
    workload = ReasoningWorkload(small_recipe(model, algorithm=PPO))
    profile = profile_of(workload.recipe, [timing(8), timing(4), timing(2)], tmp_path)
    stages = dict(profile.stages)
    for name in ("generate", "reference", "critic", "learner"):
        time = stages[name].on["cpu"].time
        memory = MemoryModel(state_bytes=30e9)
        cost = StageCost(time=time, memory=memory, switch=SwitchModel())
        stages[name] = dataclasses.replace(stages[name], on={"accelerator": cost})
    cluster = Cluster(
        groups={"gpus": NodeGroup(accelerators_per_node=4, cores_per_node=8, accelerator_memory_bytes=70e9)}
    )
    plan = chosen_plan(compare(dataclasses.replace(profile, stages=stages), cluster), "auto")
    assert workload.flow(plan).name == plan.flow
    assert plan.launcher == "ray"
    on_gpus = [name for name, stage in plan.stages.items() if all(d.startswith("cuda:") for d in stage.devices)]
    assert on_gpus == ["generate", "reference", "critic", "learner"]
    twice = dataclasses.replace(plan.stages["prompts"], devices=("cpu", "cpu"))
    with pytest.raises(ConfigurationError, match="one worker asks all problems"):
        workload.flow(dataclasses.replace(plan, stages=plan.stages | {"prompts": twice}))


def test_a_small_recipe_is_measured_planned_and_followed_with_the_bits_of_the_plain_run(model, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("reasoning.training.workload.measure", functools.partial(profiling.measure, repeats=1))
    monkeypatch.setattr(profiling, "sizes", lambda recipe: [recipe.rollout.prompts])
    recipe = small_recipe(model, cluster={"plan": "auto"})
    outcome = run_small(recipe, tmp_path / "planned")
    profile = load_profile(outcome.folder.profile)
    assert profile.recipe == "small"
    for name in ("generate", "learner"):
        assert 0.3 < profile.stages[name].traced <= 1  # most of what they take is in their spans
    plan = Plan.load(outcome.folder.plan)
    assert (plan.launcher, [stage.devices for stage in plan.stages.values()]) == ("inline", [("cpu",)] * 4)
    run_small(small_recipe(model), tmp_path / "plain")
    planned, plain = (metrics_of(tmp_path / name) for name in ("planned", "plain"))
    assert all("time/predicted_s" in metrics for metrics in planned[1:])
    for mine, theirs in zip(planned, plain, strict=True):
        same = {k: v for k, v in mine.items() if not k.startswith(("time/", "host/")) and "per_second" not in k}
        assert same == {k: v for k, v in theirs.items() if k in same}


@pytest.mark.slow
def test_profile_plan_train_and_compare_by_command(model, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("reasoning.training.workload.measure", functools.partial(profiling.measure, repeats=2))
    words = [
        "math_ppo_tiny",
        f"model.source={model}",
        "rollout.prompts=4",
        "rollout.sampling.max_new_tokens=6",
        "evaluation.sampling.max_new_tokens=6",
        "evaluation.size=3",
        "learner.global_batch=8",
        "critic.learner.global_batch=8",
        "goal.responses=128",
        "reward.processes=1",
        "logger.tensorboard=false",
    ]
    assert main(["train", *words, "plan=auto", "--dry-run"]) == 0
    assert "reasoning profile math_ppo_tiny" in capsys.readouterr().out
    assert main(["profile", *words]) == 0
    said = capsys.readouterr().out
    assert "reasoning train math_ppo_tiny plan=auto" in said
    assert main(["plan", *words, "--output", str(tmp_path / "plan.json")]) == 0
    assert "responses a second" in capsys.readouterr().out
    folder = tmp_path / "run"
    assert main(["train", *words, f"plan={tmp_path / 'plan.json'}", f"run.folder={folder}"]) == 0
    result = json.loads((folder / "result.json").read_text())["plan"]
    assert result["measured_s"] == pytest.approx(result["predicted_s"], rel=1.0)
    assert "<svg" in (folder / "plan.svg").read_text()
    assert main(["plan", str(folder), "--picture", str(tmp_path / "both.svg")]) == 0
    assert "measured" in capsys.readouterr().out
