"""Under Ray a plan of a file is carried out as it is, workers, slots, processes and cores, and followed."""

import collections
import json
import os

import pytest

from embodied.config.compose import compose_recipe
from embodied.interaction.workload import parse_workload
from embodied.runs.folder import RunFolder
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner import cache
from embodied.scheduler.planner.follow import Following
from embodied.training.planning import profile_path
from tests.interaction import test_following, test_plan_files
from tests.interaction.slowing import SlowingPole


def under_ray(folder, **changes) -> str:
    """The override that gives a plan file of one worker each, with some stages changed."""
    stages = {"env": {"processes": 0}, "policy": {}, "learner": {}}
    stages = {name: {"devices": ["cpu"]} | keys | changes.get(name, {}) for name, keys in stages.items()}
    file = folder / "plan_under_ray.json"
    file.write_text(json.dumps({"flow": "embodied", "launcher": "ray", "stages": stages}))
    return f"cluster.plan={file}"


def spans(folder: RunFolder, stage: str) -> dict[tuple[str, str], int]:
    """How many spans each worker of a stage has, by (worker, name of the work)."""
    events = json.loads(folder.trace.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    return collections.Counter(
        (names[e["tid"]], e["name"]) for e in events if e["ph"] == "X" and names[e["tid"]].startswith(f"{stage}[")
    )


@pytest.fixture
def quiet_ray(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_plan_under_ray_has_its_workers_slots_processes_and_cores(quiet_ray, monkeypatch):
    notes = quiet_ray / "notes"
    notes.mkdir()
    monkeypatch.setenv("PLACED_POLE_NOTES", str(notes))
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two shares of cores need two cores")
    plan = under_ray(
        quiet_ray,
        env={"devices": ["cpu:0", "cpu:1"], "slots": 2, "processes": 1},
        policy={"slots": 2},
    )
    pole = "env.id=gym/tests.interaction.placed:PlacedPole-v0"
    found = test_plan_files.run(quiet_ray / "planned", plan, pole, "cluster.launcher=ray")
    assert Plan.load(found.plan) == Plan.load(quiet_ray / "plan_under_ray.json")
    placed = [json.loads(path.read_text()) for path in notes.iterdir()]
    simulators = {note["process"]: note for note in placed}
    workers = {note["parent"] for note in simulators.values()}
    assert len(workers) == len({tuple(note["cores"]) for note in simulators.values()}) == 2
    # a worker's simulators are on its own share of the cores, and the two shares do not overlap
    shares = [set(note["cores"]) for note in simulators.values()]
    assert all(a == b or not a & b for a in shares for b in shares)
    assert os.getpid() not in workers
    # each of the 3 rollouts of 8 decisions is acted on twice, once a slot
    acted = sum(count for (_, name), count in spans(found, "policy").items() if name == "act")
    assert acted >= 3 * 8 * 2
    assert {worker for worker, _ in spans(found, "env")} == {"env[0]", "env[1]"}
    assert {worker for worker, _ in spans(found, "learner")} == {"learner[0]"}
    assert test_plan_files.curve(found) == test_plan_files.curve(test_plan_files.run(quiet_ray / "plain", pole))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_under_ray_is_followed_and_changes_its_plan_with_the_same_bits(quiet_ray, monkeypatch):
    monkeypatch.setenv("SLOWING_POLE_FLAG", str(quiet_ray / "slow"))
    monkeypatch.setenv("SLOWING_POLE_STEPS", str(test_following.SLOW_FROM * 64))
    monkeypatch.setattr(SlowingPole, "taken", 0)
    # as if workers started at once: how long Ray takes must not decide
    at_once = property(lambda self: 0.0, lambda self, seconds: None)
    monkeypatch.setattr(Following, "start_seconds", at_once, raising=False)
    given = under_ray(quiet_ray)
    recipe = compose_recipe("gym_cartpole_ppo_mlp", [*test_following.OPTIONS, given])
    cache.write_cached(test_following.profile(), profile_path(parse_workload("slowing", recipe)))
    followed = test_following.run(quiet_ray / "followed", given)
    log = followed.log.read_text()
    assert "plan: ray launcher" in log
    assert "a new plan takes" in log
    assert Plan.load(followed.plan).stages["env"].processes == 2
    monkeypatch.setenv("SLOWING_POLE_FLAG", str(quiet_ray / "never"))
    assert test_following.curve(followed) == test_following.curve(test_following.run(quiet_ray / "fixed"))
