"""Without staleness the decoupled loss is the synchronous algorithm's, to the bit."""

import torch
from safetensors.torch import load_file

from embodied.config.compose import compose_recipe
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.train import train
from embodied.runs.folder import create_run_folder
from embodied.runs.metrics import read_metrics

OPTIONS = [
    "env.num_envs=4",
    "rollout.decisions=8",
    "learner.global_batch=16",
    "learner.micro_batch=4",  # as many rows as act at once, so that the same kernel computes both to the bit
    "learner.epochs=2",
    "policy.hidden=[16,16]",
    "evaluation.every=2",
    "evaluation.episodes=2",
    "goal.env_steps=128",  # four iterations
    "record.episodes=0",
    "logger.tensorboard=false",
]


def run(path, loss, *overrides):
    values = compose_recipe("gym_cartpole_ppo_mlp", [*OPTIONS, f"algorithm.loss={loss}", *overrides])
    outcome = train(parse_recipe("test", values), create_run_folder(path.parent, "test", path), command="")
    metrics = [record["metrics"] for record in read_metrics(outcome.folder.metrics)]
    (weights,) = outcome.folder.checkpoints.glob("step_*/policy/model.safetensors")
    return load_file(weights), [{k: v for k, v in m.items() if not k.startswith(("time/", "host/"))} for m in metrics]


def test_without_staleness_decoupled_ppo_learns_what_ppo_does_to_the_bit(tmp_path):
    weights, metrics = run(tmp_path / "ppo", "ppo")
    decoupled, more = run(tmp_path / "decoupled", "decoupled_ppo", "algorithm.max_staleness=0")
    assert weights.keys() == decoupled.keys()
    assert [name for name in weights if not torch.equal(weights[name], decoupled[name])] == []
    assert [{name: m[name] for name in plain} for plain, m in zip(metrics, more, strict=True)] == metrics
    for m in more[1:]:
        assert (m["rollout/staleness_max"], m["policy/behaviour_kl"]) == (0, 0)
        assert m["policy/behaviour_weight"] == m["policy/behaviour_weight_max"] == 1
