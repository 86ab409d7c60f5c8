"""Whole small runs of the reasoning flow in one process: what they leave, how they resume, what each option does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from embodied.errors import CheckpointError, ConfigurationError, DeadlineExceeded
from embodied.runs.checkpoint import CheckpointStore
from embodied.scheduler import Route, launcher
from embodied.scheduler.lease import Leases
from embodied.scheduler.plan import StagePlan, fit_memory
from embodied.training.run import TrainingRun
from reasoning.models.actor import Actor
from reasoning.models.loading import open_model, open_tokenizer
from reasoning.training.flow import reasoning_flow
from reasoning.training.generate_worker import GenerateWorker
from reasoning.training.learner_worker import LearnerWorker
from reasoning.training.problems import gather
from reasoning.training.recipe import load_run_recipe
from reasoning.training.reward_worker import RewardWorker
from tests.reasoning.small_runs import metrics_of, run_small, save_small_model, small_recipe, weights_of

PPO = {"advantage": "gae", "kl_coefficient": 0.01, "kl_in": "reward", "kl": "k1"}
PARTIAL = {"max_staleness": 1, "old_logprobs": "learner", "engine_correction": "truncate"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("model"))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_times(metrics):
    return [
        {k: v for k, v in m.items() if not k.startswith(("time/", "host/")) and "per_second" not in k} for m in metrics
    ]


def test_a_run_learns_and_leaves_everything_behind(model, tmp_path):
    outcome = run_small(small_recipe(model, goal={"responses": 160}, evaluation={"every": 5}), tmp_path / "run")
    assert outcome.status == "limit"
    folder = outcome.folder
    for path in (folder.config, folder.plan, folder.metrics, folder.trace, folder.log, folder.result):
        assert path.stat().st_size > 0
    assert (folder.path / "evaluation" / "index.html").is_file()
    metrics = metrics_of(folder.path)
    assert len(metrics) == 11
    rewards = [m["reward/mean"] for m in metrics[1:]]
    assert sum(rewards[-3:]) > sum(rewards[:3])
    for m in metrics[1:]:
        # generation and learning see the same distribution, and nothing is older than the weights that learn
        assert m["policy/logprob_gap_max"] < 1e-4
        assert m["rollout/staleness_max"] == 0
        assert m["learner/steps"] == 2
    before, after = json.loads(folder.result.read_text())["before"], outcome.result["after"]
    assert {"eval/accuracy", "eval/accuracy_low", "eval/truncated"} <= before.keys() & after.keys()
    assert load_run_recipe(folder.path).as_dict() == small_recipe(
        model, goal={"responses": 160}, evaluation={"every": 5}
    ).as_dict() | {"name": "small"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"algorithm": PPO},
        {"algorithm": PPO, "cluster": {"launcher": "inline", "memory_mib": 0.8}},
        pytest.param({"algorithm": PARTIAL, "rollout": {"extra_prompts": 2, "slots": 4}}, marks=pytest.mark.slow),
    ],
    ids=["grpo", "ppo with critic and reference", "stages that take turns", "responses that go on after an update"],
)
def test_a_resumed_run_has_the_same_bits_as_one_that_never_stopped(model, tmp_path, changes):
    recipe = small_recipe(model, goal={"responses": 64}, **changes)
    whole = run_small(recipe, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    for step in (3, 4):
        shutil.rmtree(tmp_path / "stopped" / "checkpoints" / f"step_{step}", ignore_errors=True)
    resumed = run_small(load_run_recipe(tmp_path / "stopped"), tmp_path / "stopped", resume=True)
    assert same(weights_of(whole), weights_of(resumed))
    assert without_times(metrics_of(tmp_path / "whole")) == without_times(metrics_of(tmp_path / "stopped"))
    swapped = (tmp_path / "stopped" / "log.txt").read_text().count("leave their device between turns")
    assert swapped == (2 if "cluster" in changes else 0)


@pytest.mark.slow
def test_ppo_has_stages_for_values_and_reference_and_the_critic_learns(model, tmp_path):
    recipe = small_recipe(model, algorithm=PPO, critic={"learner": {"lr": 1e-2}}, goal={"responses": 128})
    outcome = run_small(recipe, tmp_path / "run")
    metrics = metrics_of(tmp_path / "run")[1:]
    assert list(json.loads(outcome.folder.plan.read_text())["stages"]) == [
        "prompts",
        "generate",
        "reward",
        "reference",
        "critic",
        "learner",
    ]
    assert metrics[0]["value/mean"] == pytest.approx(0.0, abs=0.2)  # within the first pass it has only begun to learn
    assert metrics[-1]["value/loss"] < metrics[0]["value/loss"]
    assert metrics[0]["policy/reference_kl"] == pytest.approx(0.0, abs=1e-5)  # both are the same model at first
    assert metrics[-1]["policy/reference_kl"] != 0
    assert (metrics[0]["critic/steps"], metrics[0]["learner/steps"]) == (1, 2)


@pytest.mark.slow
def test_critic_warmup_leaves_the_model_alone(model, tmp_path):
    recipe = small_recipe(model, algorithm=PPO | {"critic_warmup": 1}, goal={"responses": 32})
    run_small(recipe, tmp_path / "run")
    first, second = metrics_of(tmp_path / "run")[1:]
    assert "learner/steps" not in first
    assert first["critic/steps"] == 1
    assert second["learner/steps"] == 2


@pytest.mark.slow
def test_micro_batches_and_packing_change_no_value(model, tmp_path):
    found = {}
    layouts = {"one": {}, "small": {"micro_tokens": 40}, "packed": {"rows": "packed", "row_tokens": 48}}
    for name, layout in layouts.items():
        recipe = small_recipe(model, layout=layout, goal={"responses": 16}, learner={"global_batch": None})
        found[name] = weights_of(run_small(recipe, tmp_path / name))
    for name in ("small", "packed"):
        for key, value in found["one"].items():
            torch.testing.assert_close(found[name][key], value, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_dynamic_sampling_asks_until_enough_groups_have_scores_that_differ(model, tmp_path):
    # few responses of this model contain a digit, so many groups are all wrong
    reward = {"terms": [{"kind": "tests.reasoning.small_runs:has_a_digit"}], "processes": 1}
    recipe = small_recipe(
        model, reward=reward, algorithm={"uniform_groups": "resample"}, rollout={"prompts": 3, "max_waves": 8}
    )
    run_small(recipe, tmp_path / "run")
    metrics = metrics_of(tmp_path / "run")[1:]
    assert max(m["rollout/waves"] for m in metrics) > 1
    for m in metrics:
        assert m["rollout/asked"] > 3
        # whatever is learnt from was chosen because it differs
        assert m["group/informative_fraction"] == 1
    plain = small_recipe(model, reward=reward)
    run_small(plain, tmp_path / "plain")
    assert metrics_of(tmp_path / "plain")[1]["group/informative_fraction"] < 1


@pytest.mark.slow
def test_responses_go_on_after_an_update_and_say_which_weights_drew_them(model, tmp_path):
    recipe = small_recipe(model, algorithm=PARTIAL, rollout={"extra_prompts": 2, "slots": 4}, goal={"responses": 64})
    run_small(recipe, tmp_path / "run")
    metrics = metrics_of(tmp_path / "run")[1:]
    assert any(m["rollout/carried"] > 0 for m in metrics)
    assert max(m["rollout/staleness_max"] for m in metrics) == 1
    assert any(m["policy/behaviour_weight_max"] > 1 for m in metrics[1:])


@pytest.mark.parametrize("extra", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_several_generators_finish_every_iteration_as_many_groups_as_are_wanted(model, tmp_path, extra):
    # 5 problems do not divide among 2
    recipe = small_recipe(
        model,
        algorithm=PARTIAL,
        rollout={"prompts": 5, "extra_prompts": extra, "slots": 4},
        cluster={"launcher": "inline", "workers": {"generate": 2}},
        goal={"responses": 100},
        evaluation={"every": 0},
    )
    run_small(recipe, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == [20 * i for i in range(6)]
    carried = [line["metrics"]["rollout/carried"] for line in lines[1:]]
    assert carried == [0.0] * 5 if extra == 0 else max(carried) > 0


def test_what_is_loaded_at_once_stays_within_the_memory_given(model, tmp_path, monkeypatch):
    loaded: list[tuple[tuple[str, ...], list[str]]] = []
    genuine = Leases.turn

    @contextlib.asynccontextmanager
    async def watched(self, *stages):
        async with genuine(self, *stages):
            loaded.append((stages, [name for name in sizes if name not in self.away]))
            yield

    sizes: dict[str, int] = {}

    def noted(plan, found, budget):
        sizes.update({name: sum(ranks) for name, ranks in found.items()})
        return fit_memory(plan, found, budget)

    monkeypatch.setattr(Leases, "turn", watched)
    monkeypatch.setattr(launcher, "fit_memory", noted)
    resample = {"uniform_groups": "resample", "kl_in": "loss", "kl": "k3"}
    memory = {"launcher": "inline", "memory_mib": 0.8}
    recipe = small_recipe(model, algorithm={**PPO, **resample}, cluster=memory, goal={"responses": 16})
    run_small(recipe, tmp_path / "run")
    assert sum(sizes.values()) > 0.8 * 2**20
    assert {"critic", "learner", "generate", "reference"} <= {name for stages, _ in loaded for name in stages}
    for stages, there in loaded[1:]:  # before the first turn everything was just built
        assert sum(sizes[name] for name in there) <= 0.8 * 2**20, (stages, there)


def test_a_checkpoint_leaves_no_more_on_a_device_than_it_may_hold(model, tmp_path, monkeypatch):
    found: list[tuple[frozenset[str], dict[str, int]]] = []
    genuine = TrainingRun.save

    async def watched(self):
        made = await genuine(self)
        held = {name: sum(await group.call("memory")) for name, group in self.system.groups.items()}
        found.append((self.system.leases.away, held))
        return made

    monkeypatch.setattr(TrainingRun, "save", watched)
    memory = {"launcher": "inline", "memory_mib": 0.8}
    run_small(small_recipe(model, algorithm=PPO, cluster=memory, goal={"responses": 32}), tmp_path / "run")
    assert len(found) == 3  # after every iteration, and once more at the end
    for away, held in found:
        assert away
        # generate says what its engine needs, whether it is there or not
        assert not any(held[name] for name in away - {"generate"})
        assert 0 < sum(size for name, size in held.items() if name not in away) <= 0.8 * 2**20


def test_which_rank_learns_from_a_group_does_not_depend_on_time(model):
    recipe = small_recipe(model, algorithm=PPO)
    flow = reasoning_flow(recipe, gather(recipe), "cpu", Path("unused"))
    routes = {
        edge.target.stage: edge.route for edge in flow.edges if edge.target.stage in ("reference", "critic", "learner")
    }
    assert routes == dict.fromkeys(("reference", "critic", "learner"), Route.KEY)


def test_groups_under_way_go_on_with_another_number_of_generators():
    parts = [{"carried": ["a", "b", "c"]}, {"carried": ["d"]}]
    divided = GenerateWorker.divide_state(parts, StagePlan(devices=("cpu:0", "cpu:1", "cpu:2")), None)
    assert [part["carried"] for part in divided] == [["a", "d"], ["b"], ["c"]]
    assert GenerateWorker.divide_state(parts, StagePlan(devices=("cpu:0", "cpu:1")), None) == parts


@pytest.mark.slow
def test_a_rollout_may_be_drawn_while_the_one_before_is_learnt_from(model, tmp_path):
    recipe = small_recipe(
        model, algorithm=PARTIAL, goal={"responses": 64}, evaluation={"every": 4}, checkpoint={"every": 4}
    )
    run_small(recipe, tmp_path / "run")
    assert max(m["rollout/staleness_max"] for m in metrics_of(tmp_path / "run")[1:]) == 1


def test_what_could_not_be_graded_is_counted_said_and_left_out(model, tmp_path):
    reward = {"terms": [{"kind": "tests.reasoning.small_runs:sometimes_fails"}], "processes": 1}
    run_small(small_recipe(model, reward=reward), tmp_path / "run")
    metrics = metrics_of(tmp_path / "run")[1:]
    assert 0 < sum(m["reward/error"] for m in metrics) < len(metrics)
    for m in metrics:
        assert m["rollout/excluded"] == pytest.approx(m["reward/error"]) == pytest.approx(m["reward/excluded"])
    assert "Not graded" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.slow
def test_evaluation_does_not_depend_on_how_many_are_generated_at_once(model, tmp_path):
    found = []
    for slots in (1, 7):
        evaluation = {"attempts": 4, "sampling": {"max_new_tokens": 6}, "every": 1}
        recipe = small_recipe(model, rollout={"slots": slots}, evaluation=evaluation, goal={"responses": 1})
        run_small(recipe, tmp_path / str(slots))
        found.append(json.loads((tmp_path / str(slots) / "result.json").read_text())["before"])
    assert found[0] == found[1]
    assert "eval/pass_at_4" in found[0]
    assert "eval/majority_at_4" in found[0]


def test_training_and_held_out_problems_never_meet(model):
    sets = gather(small_recipe(model, evaluation={"size": 50}, problems={"size": 400}))
    known = {problem.key for problem in sets.training}
    assert len(sets.held_out) == 50
    assert not known & {problem.key for problem in sets.held_out}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learner": {"micro_batch": 4}}, "layout.micro_tokens"),
        ({"learner": {"global_batch": 17}}, "more than the 16 responses"),
        ({"rollout": {"extra_prompts": 2}}, "max_staleness"),
        ({"rollout": {"sampling": {"top_p": 0.9}}}, "no importance ratio"),
        ({"evaluation": {"every": 0}, "goal": {"at_least": 0.5}}, "evaluation.every=0"),
        ({"reward": {"terms": [{"kind": "math"}, {"kind": "overlong", "options": {"limit": 9, "buffer": 2}}]}}, "=6"),
        ({"modle": {}}, "Did you mean 'model'"),
        ({"seed": -1}, "seed"),
        ({"learner": {"value_lr": 1e-3}}, "critic.learner.lr"),
        ({"critic": {"value_clip": 0.2}}, "without a critic"),
        ({"algorithm": {"advantage": "gae"}, "critic": {"learner": {"target_kl": 0.1}}}, "that is learner.target_kl"),
        ({"algorithm": {"gamma": 0.9}}, "algorithm.gamma is given, but nothing would follow it"),
        ({"algorithm": {"gae_lambda": 0.9}}, "algorithm.gae_lambda"),
        ({"algorithm": {"normalize_advantages": False}}, "algorithm.normalize_advantages"),
        ({"algorithm": {"advantage": "rloo", "deviation": "none"}}, "algorithm.deviation"),
        ({"algorithm": {"correction_cap": 3.0}}, "engine_correction is none"),
        ({"algorithm": {"truncated_penalty": 0.5}}, "truncated is not penalise"),
        ({"rollout": {"max_waves": 9}}, "uniform_groups is not resample"),
        ({"layout": {"row_tokens": 64}}, "rows is not packed"),
        ({"cluster": {"device": "cuda:9"}}, "cuda:9"),
    ],
)
def test_impossible_recipes_are_refused_before_anything_starts(model, changes, words):
    with pytest.raises(ConfigurationError, match=words):
        small_recipe(model, **changes)


def test_a_stage_that_the_recipe_lacks_cannot_be_placed(model, tmp_path):
    recipe = small_recipe(model, cluster={"workers": {"critic": 2}})
    with pytest.raises(ConfigurationError, match="critic"):
        run_small(recipe, tmp_path / "run")


@pytest.mark.slow
def test_a_checkpoint_loads_no_more_at_once_than_the_memory_given(model, tmp_path, monkeypatch):
    """The critic and the model that learns cannot both stay, neither while they learn nor while they are saved."""
    seen: list[tuple[float, int]] = []
    genuine, saving = Leases.turn, TrainingRun._write
    systems = []

    @contextlib.asynccontextmanager
    async def watched(self, *stages):
        async with genuine(self, *stages):
            if systems:
                sizes = {name: sum(await group.call("memory")) for name, group in systems[-1].groups.items()}
                seen.append((sum(size for name, size in sizes.items() if name not in self.away), stages))
            yield

    async def noted(self):
        systems.append(self.system)
        try:
            return await saving(self)
        finally:
            systems.clear()

    monkeypatch.setattr(Leases, "turn", watched)
    monkeypatch.setattr(TrainingRun, "_write", noted)
    memory = {"launcher": "inline", "memory_mib": 0.5}
    outcome = run_small(small_recipe(model, algorithm=PPO, cluster=memory, goal={"responses": 16}), tmp_path / "tight")
    assert {name for _, stages in seen for name in stages} == {"critic", "learner"}
    assert max(held for held, _ in seen) <= 0.5 * 2**20
    roomy = run_small(small_recipe(model, algorithm=PPO, goal={"responses": 16}), tmp_path / "roomy")
    states = [CheckpointStore(made.folder.checkpoints, keep=9).latest().state()["workers"] for made in (outcome, roomy)]
    for stage in ("critic", "learner"):
        assert same(*(state[stage][0]["module"] for state in states))


@pytest.mark.parametrize("operation", ["grade", "judge"])
def test_what_goes_wrong_while_grading_arrives_as_itself(operation):
    class Groups:
        async def __aiter__(self):
            yield 0, object()
            yield 1, object()

    async def broken(*_):
        raise DeadlineExceeded("the grading processes are stuck")

    worker = RewardWorker.__new__(RewardWorker)
    worker.groups, worker._score = Groups(), broken
    worker.options = SimpleNamespace(problems=(), held_out=())
    with pytest.raises(DeadlineExceeded, match="the grading processes are stuck"):
        asyncio.run(getattr(worker, operation)(None))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_tokenizer_that_does_not_fit_on_the_disk_is_said_as_of_a_checkpoint(model, tmp_path):
    worker = LearnerWorker.__new__(LearnerWorker)
    worker.context = SimpleNamespace(rank=0)
    worker.module = Actor(open_model(model, seed=0, dtype=torch.float32, device="cpu"))
    worker.tokenizer = open_tokenizer(model)
    (tmp_path / "tokenizer.json").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"tokenizer could not be written to .*No space left.*Free some space"):
        asyncio.run(worker.export(tmp_path))
