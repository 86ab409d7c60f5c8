"""Runs whose stages leave the device between turns: they resume to the bit, and what checkpoints leave there."""

import shutil

import pytest
import torch

from embodied.config.compose import compose_recipe
from embodied.interaction.recipe import load_run_recipe, parse_recipe
from embodied.interaction.train import train
from embodied.runs.checkpoint import CheckpointStore
from embodied.runs.folder import RunFolder, create_run_folder
from embodied.runs.metrics import read_metrics
from embodied.training import loop
from embodied.training.run import TrainingRun
from tests.interaction.test_same_everywhere import hosted

BUDGET = 0.012  # MiB: learner or policy, not both
OPTIONS = [
    "env.num_envs=4",
    "rollout.decisions=10",
    "learner.global_batch=20",
    "learner.epochs=2",
    "policy.hidden=[16,16]",
    "policy.scale=running",
    "evaluation.every=3",
    "evaluation.episodes=2",
    "checkpoint.every=2",
    "checkpoint.keep=9",
    "goal.at_least=null",
    "goal.env_steps=200",  # five iterations
    "record.episodes=0",
    "logger.tensorboard=false",
]
SWAPPING = ["cluster.launcher=ray", f"cluster.memory_mib={BUDGET}"]


@pytest.fixture(autouse=True)
def ray_in_this_process(monkeypatch):
    """Hosts and links as under Ray, without its processes."""
    inline = loop.make_launcher
    monkeypatch.setattr(
        loop,
        "make_launcher",
        lambda flow, plan, **options: (hosted if plan.launcher == "ray" else inline)(flow, plan, **options),
    )


def run(path, *overrides):
    folder = create_run_folder(path.parent, "test", path)
    return train(
        parse_recipe("test", compose_recipe("gym_cartpole_ppo_mlp", [*OPTIONS, *overrides])), folder, command=""
    )


def state(path):
    """Everything that the last checkpoint holds, by the place in it."""
    found = {}

    def collect(value, place):
        if isinstance(value, dict):
            for name, inner in value.items():
                collect(inner, f"{place}/{name}")
        elif isinstance(value, list):
            collect(dict(enumerate(value)), place)
        else:
            found[place] = value

    collect(CheckpointStore(path / "checkpoints", keep=9).latest().state(), "")
    return {place: value for place, value in found.items() if not place.endswith("/seconds")}


def assert_same(first, second):
    a, b = state(first), state(second)
    assert a.keys() == b.keys()
    assert [p for p in a if not (torch.equal(a[p], b[p]) if isinstance(a[p], torch.Tensor) else a[p] == b[p])] == []


def logged(path):
    return [
        {name: value for name, value in record["metrics"].items() if not name.startswith(("time/", "host/"))}
        for record in read_metrics(path / "metrics.jsonl")
    ]


def test_a_resumed_run_that_swaps_has_the_bits_of_one_that_never_stopped_or_swapped(tmp_path):
    whole, stopped, roomy = (tmp_path / name for name in ("whole", "stopped", "roomy"))
    run(whole, *SWAPPING)
    assert "memory: policy, learner leave their device" in (whole / "log.txt").read_text()
    shutil.copytree(whole, stopped)
    for step in (4, 5):
        shutil.rmtree(stopped / "checkpoints" / f"step_{step}")
    train(load_run_recipe(stopped), RunFolder(stopped), command="", resume=True)
    said = (stopped / "log.txt").read_text()
    assert "resumed after iteration 2" in said
    assert said.count("memory: policy, learner leave their device") == 2
    assert_same(whole, stopped)
    assert logged(whole) == logged(stopped)
    run(roomy)
    assert_same(whole, roomy)


def test_a_checkpoint_leaves_no_more_on_a_device_than_it_may_hold(tmp_path, monkeypatch):
    found, genuine = [], TrainingRun.save

    async def watched(self):
        made = await genuine(self)
        held = {name: sum(await group.call("memory")) for name, group in self.system.groups.items()}
        found.append((self.system.leases.away, held))
        return made

    monkeypatch.setattr(TrainingRun, "save", watched)
    run(tmp_path / "run", *SWAPPING)
    assert len(found) == 3
    for away, held in found:
        assert {name for name in ("policy", "learner") if not held[name]} == away & {"policy", "learner"}
        assert 0 < sum(held.values()) <= BUDGET * 2**20


def test_how_often_checkpoints_are_written_changes_no_bit(tmp_path):
    for name, every in (("often", 1), ("never", 99)):
        run(tmp_path / name, *SWAPPING, f"checkpoint.every={every}")
    assert_same(tmp_path / "often", tmp_path / "never")
