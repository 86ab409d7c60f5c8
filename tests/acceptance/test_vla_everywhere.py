"""A vision-language-action policy learns the same from the simulator's pictures wherever the workers are."""

import pytest

import embodied

pytestmark = pytest.mark.slow

SMALL = [
    "env.num_envs=8",
    "env.processes=0",
    "rollout.decisions=6",
    "learner.global_batch=24",
    "learner.micro_batch=6",
    "learner.epochs=1",
    "algorithm.critic_warmup=1",
    "evaluation.episodes=8",
    "record.episodes=0",
    "goal.env_steps=600",
    "cluster.deadline_seconds=240",
]
MEASURED = ("train/return", "policy/loss", "policy/approx_kl", "value/loss", "learner/gradient_norm", "eval/return")


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """What a recipe's run measured, by name."""
    known = {}

    def curve(recipe, *overrides):
        key = (recipe, *overrides)
        if key not in known:
            folder = tmp_path_factory.mktemp("run") / "run"
            run = embodied.train(recipe, [*SMALL, *overrides, f"run.folder={folder}"])
            known[key] = {name: run.metric(name)[1].tolist() for name in MEASURED}
        return known[key]

    return curve


@pytest.mark.parametrize(
    ("overrides", "tolerance"),
    [
        (["cluster.placement=shared"], 0.0),
        (["cluster.placement=split", "cluster.workers.env=2"], 0.0),
        (["cluster.placement=mixed", "cluster.workers.learner=2"], 1e-3),
    ],
    ids=["shared", "split", "mixed, two learner ranks"],
)
def test_ppo_under_ray_measures_what_one_process_measures(curves, overrides, tolerance):
    recipe = "maniskill_ppo_openvla_oft_tiny"
    expected = curves(recipe)
    assert len(expected["policy/approx_kl"]) >= 2, "the policy was not updated twice"
    found = curves(recipe, "cluster.launcher=ray", *overrides)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=tolerance, rel=tolerance), name
