"""From measured times to a profile, by hand values; and a real recipe measured, kept and planned."""

import json

import pytest

from embodied.commands.main import main
from embodied.config.compose import compose_recipe
from embodied.errors import EXIT_DONE, EXIT_REFUSED
from embodied.interaction import profiling
from embodied.interaction.cost_profile import build_profile
from embodied.interaction.profiling import Setting, Timing
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.workload import EmbodiedWorkload
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner.profile import parse_profile
from embodied.training.planning import kept_profile, profile_path

SMALL = [
    "rollout.decisions=8",
    "learner.global_batch=32",
    "learner.epochs=1",
    "policy.hidden=[8,8]",
    "evaluation.every=0",
    "evaluation.episodes=1",
    "goal.at_least=null",
    "goal.env_steps=320",
    "record.episodes=0",
    "logger.tensorboard=false",
]


def cartpole(*overrides):
    return parse_recipe("gym_cartpole_ppo_mlp", compose_recipe("gym_cartpole_ppo_mlp", [*SMALL, *overrides]))


def timing(num_envs: int, processes: int, env: float, policy: float, learner: float, shown: float = 0.5) -> Timing:
    """Three equal iterations of eight decisions."""
    return Timing(
        Setting(num_envs, processes),
        [env] * 3,
        [policy] * 3,
        [learner] * 3,
        [shown * policy * 8] * 3,
        [learner] * 3,
        starting=0.25 + processes,
    )


def test_the_sizes_are_halves_and_processes_up_to_the_cores(monkeypatch):
    monkeypatch.setattr(profiling, "cores", lambda: 4)
    assert profiling.settings(cartpole()) == [
        *[Setting(n, 0) for n in (8, 4, 2)],
        *[Setting(n, 1) for n in (8, 4)],
        *[Setting(n, 2) for n in (8, 4)],
        *[Setting(n, 4) for n in (8, 4)],
    ]


def test_long_rollouts_are_measured_shorter():
    assert profiling.variant_of(cartpole("rollout.decisions=512"), Setting(8, 0)).rollout.decisions == 64
    assert profiling.variant_of(cartpole("rollout.decisions=8"), Setting(8, 0)).rollout.decisions == 8


def test_what_is_measured_learns_from_everything():
    grpo = ["algorithm.advantage=grpo", "algorithm.loss=ppo", "algorithm.group_size=4", "policy.value=none"]
    attempts = ["env.auto_reset=disabled", "rollout.start=fresh", "env.episode_steps=8"]
    given = cartpole(*grpo, *attempts, "algorithm.filter_rewards=[0.1,0.9]")
    assert profiling.variant_of(given, Setting(8, 0)).algorithm.filter_rewards is None
    assert profiling.variant_of(cartpole("algorithm.critic_warmup=3"), Setting(8, 0)).algorithm.critic_warmup == 0


def test_a_profile_of_one_gpu_is_not_that_of_all():
    alone, every = (EmbodiedWorkload(cartpole(f"cluster.device={device}")) for device in ("cpu", "auto"))
    assert profile_path(alone) != profile_path(every)
    # two environments need twice the decisions to fill a batch of 32
    assert profiling.variant_of(cartpole("rollout.decisions=8"), Setting(2, 0)).rollout.decisions == 16


def test_a_profile_gives_back_the_times_it_was_made_from():
    timings = [
        timing(8, 0, env=8e-3, policy=3e-3, learner=0.64),
        timing(4, 0, env=4e-3, policy=3e-3, learner=0.32),
        # a process of its own: 1 ms a round more, and 0.1 ms for each environment
        timing(8, 1, env=9e-3, policy=3.8e-3, learner=0.64),
        timing(4, 1, env=5e-3, policy=3.4e-3, learner=0.32),
        timing(8, 2, env=4e-3 + 1e-3, policy=3e-3, learner=0.64),
        timing(4, 2, env=2e-3 + 1e-3, policy=3e-3, learner=0.32),
    ]
    profile = build_profile(cartpole(), timings)
    env, policy, learner = (profile.stages[name].on["cpu"] for name in ("env", "policy", "learner"))
    assert (env.time.per_item, env.time.per_doubling) == pytest.approx((1e-3, 1e-3))
    assert policy.time.fixed == pytest.approx(3e-3)
    assert learner.time.per_item == pytest.approx(0.01)
    assert profile.stages["policy"].traced == pytest.approx(0.5)
    assert profile.edges[0].latency_seconds == pytest.approx(1e-3)
    assert profile.edges[0].seconds_per_item == pytest.approx(1e-4)
    assert (profile.cycles[0].rounds, profile.cycles[0].slot_counts) == (8, (1, 2, 4))
    assert profile.start_seconds == pytest.approx(2.25)
    assert all(cost.time.error < 0.01 for cost in (env, policy, learner))
    assert parse_profile(profile.to_json(), "here") == profile


def test_a_profile_is_kept_for_what_decides_costs_and_not_for_where_things_run(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def path_of(*overrides):
        return profile_path(EmbodiedWorkload(cartpole(*overrides)))

    path = path_of()
    assert path.is_relative_to(tmp_path)
    assert path_of("env.slots=2", "env.processes=1", "seed=3", "goal.env_steps=64") == path
    assert path_of("policy.hidden=[16,8]") != path
    assert path_of("env.num_envs=16") != path
    assert kept_profile(EmbodiedWorkload(cartpole())) is None
    path.parent.mkdir(parents=True)
    path.write_text('{"flow": "embod')  # written halfway
    assert kept_profile(EmbodiedWorkload(cartpole())) is None


@pytest.mark.slow
def test_measured_kept_planned_edited_trained_and_drawn(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(profiling, "cores", lambda: 1)  # fewer sizes
    recipe = ["gym_cartpole_ppo_mlp", *SMALL]
    waiting = main(["train", *recipe, "plan=auto", "--dry-run"])
    assert (waiting, "embodied profile gym_cartpole_ppo_mlp" in capsys.readouterr().out) == (EXIT_DONE, True)
    assert main(["profile", *recipe, "--output", str(tmp_path / "profile.json")]) == EXIT_DONE
    first = capsys.readouterr().out
    assert "8/1, 4/1, 2/1" in first
    assert main(["profile", *recipe]) == EXIT_DONE
    assert "kept since it was measured" in capsys.readouterr().out
    plan = tmp_path / "plan.json"
    assert main(["plan", *recipe, "--output", str(plan)]) == EXIT_DONE
    assert "why " in capsys.readouterr().out
    values = json.loads(plan.read_text())
    values["stages"]["env"] |= {"slots": 2, "processes": 0}
    values["stages"]["policy"]["slots"] = 2
    plan.write_text(json.dumps(values))
    assert main(["plan", *recipe, f"plan={plan}"]) == EXIT_DONE
    assert "shared, 2 slots" in capsys.readouterr().out
    assert main(["train", *recipe, f"plan={plan}", f"run.folder={tmp_path / 'run'}"]) == EXIT_DONE
    assert Plan.load(tmp_path / "run" / "plan.json") == Plan.load(plan)
    assert main(["plan", str(tmp_path / "run"), "--picture", str(tmp_path / "both.svg")]) == EXIT_DONE
    assert "measured" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "both.svg").read_text()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["plan=nowhere.json"], "nowhere.json cannot be read"),
        (["plan=auto", "cluster.workers.env=2"], "cluster.workers; leave one out"),
        (["plan=auto", "cluster.address=auto"], "not for the Ray cluster at auto"),
    ],
)
def test_plans_that_cannot_be_followed_are_refused_before_anything_starts(overrides, message, capsys, tmp_path):
    assert main(["train", "gym_cartpole_ppo_mlp", *SMALL, f"run.root={tmp_path}", *overrides]) == EXIT_REFUSED
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_plan_that_does_not_suit_the_recipe_is_refused_with_what_would(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    stages = {name: {"devices": ["cpu"]} for name in ("env", "policy", "learner")}
    for slots, message in ((3, "env.num_envs=8 is not divisible by slots=3"), (1, "serve the same ones")):
        stages["env"]["slots"] = slots
        stages["policy"]["slots"] = 3
        plan.write_text(json.dumps({"flow": "embodied", "launcher": "inline", "stages": stages}))
        assert main(["train", "gym_cartpole_ppo_mlp", *SMALL, f"plan={plan}"]) == EXIT_REFUSED
        assert message in capsys.readouterr().err
