"""How a learner goes over a rollout: in which order, in which mode, and when it stops."""

import asyncio
import itertools

import pytest
import torch
from tensordict import TensorDict
from torch import nn

import embodied
import embodied.interaction.learner_worker as learner_worker_module
from embodied.interaction.algorithm import AlgorithmConfig, make_samples
from embodied.interaction.learner_worker import LearnerWorker, LearnerWorkerOptions
from embodied.interaction.trajectory import Trajectory
from embodied.learner.learner import LearnerConfig
from embodied.scheduler.trace import Trace
from embodied.scheduler.worker import WorkerContext
from policies.api import Evaluation, Interface, Policy, PolicyConfig, PolicyOutput, PolicySpec
from policies.mlp import MLPPolicy

DECISIONS, ENVS = 4, 3
PLAIN = {"advantage": "reinforce_pp", "loss": "ppo"}


class NotingPolicy(Policy):
    """Gives a token the log-probability -weight * token, and notes what it is asked about and in which mode."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = PolicySpec("noting", 1, 1, 1, 0)
        self.weight = nn.Parameter(torch.ones(()))
        self.asked: list[list[int]] = []
        self.modes: list[bool] = []

    def evaluate(self, inputs, tokens, sampling):
        self.asked.append(inputs["number"].flatten().tolist())
        self.modes.append(self.training)
        return Evaluation(-tokens * self.weight, torch.zeros_like(tokens), None)

    def prepare(self, observation):
        return TensorDict({}, batch_size=[len(observation.state)])

    def act(self, inputs, sampling, noise):
        return PolicyOutput(*[torch.zeros(len(inputs), 1, 1)] * 3, None)

    def value(self, inputs):
        raise AssertionError("there is no critic")

    def metadata(self):
        return {}


def rollout(acting: float = 1.0) -> Trajectory:
    """Decisions numbered in order, whose tokens are 1 + number / 4; drawn with the weight `acting`."""
    shape = (DECISIONS, ENVS)
    number = torch.arange(DECISIONS * ENVS).reshape(shape)
    tokens = 1 + number.reshape(*shape, 1, 1) / 4
    ends = torch.zeros(*shape, 1, dtype=torch.bool)
    ends[-1] = True
    return Trajectory(
        inputs=TensorDict({"number": number}, batch_size=shape),
        actions=tokens,
        tokens=tokens,
        logprobs=-tokens * acting,
        rewards=tokens[..., 0],
        terminated=ends,
        truncated=torch.zeros_like(ends),
        valid=torch.ones_like(ends),
        state_values=torch.zeros(DECISIONS + 1, ENVS, 0),
        final_values=torch.zeros(*shape, 0),
        env_ids=torch.arange(ENVS).expand(shape).clone(),
        group_ids=torch.arange(ENVS).expand(shape).clone(),
        assignments=torch.zeros(*shape, 3, dtype=torch.int64),
        versions=torch.zeros(shape, dtype=torch.int64),
        batch_size=[],
    )


@pytest.fixture
def learner(monkeypatch, tmp_path):
    """Makes a learner of the noting policy: learner(algorithm, seed=0, **options of the optimiser)."""
    interface = Interface(state_dim=1, action_dim=1, action_kind="discrete", choices=2)
    monkeypatch.setattr(learner_worker_module.registry, "interface_of", lambda spec: interface)
    monkeypatch.setattr(learner_worker_module.registry, "build", lambda *arguments, **options: NotingPolicy())

    def make(algorithm, seed=0, **options):
        context = WorkerContext("learner", 0, 1, "cpu", seed, Trace(), 30.0)
        options = LearnerWorkerOptions(
            PolicyConfig(name="noting"), AlgorithmConfig(**algorithm), LearnerConfig(**options), tmp_path
        )
        worker = LearnerWorker(context, options)
        asyncio.run(worker.setup({"env": None}))
        return worker

    return make


def learn(worker, iteration=0):
    """One iteration on a rollout of the current weights; its metrics."""
    record = rollout(float(worker.policy.weight.detach()))
    record.versions += worker.version

    async def take_in():
        return record

    worker._take_in = take_in
    return asyncio.run(worker.learn(iteration)).metrics


def passes(make, seed):
    """The orders in which the numbered samples are learnt from, in two passes over each of two rollouts."""
    worker = make(PLAIN, seed=seed, epochs=2, global_batch=4)
    for iteration in range(2):
        learn(worker, iteration)
    assert [len(numbers) for numbers in worker.policy.asked] == [4] * 12
    numbers = list(itertools.chain(*worker.policy.asked))
    return [numbers[start : start + 12] for start in range(0, 48, 12)]


def test_every_pass_over_every_rollout_is_shuffled_anew_and_by_the_seed_alone(learner):
    found = passes(learner, seed=5)
    assert all(sorted(numbers) == list(range(12)) for numbers in found)
    everyone = [*found, *passes(learner, seed=6), list(range(12))]
    assert len({tuple(numbers) for numbers in everyone}) == 9
    assert passes(learner, seed=5) == found


def test_a_policy_learns_in_training_mode_and_is_otherwise_in_the_mode_it_acts_in(learner):
    worker = learner({"advantage": "reinforce_pp", "loss": "decoupled_ppo"}, epochs=2)
    assert not worker.policy.training
    learn(worker)
    # the log-probabilities before the update, then one step an epoch
    assert worker.policy.modes == [False, True, True]
    assert not worker.policy.training


def test_a_policy_acts_and_values_in_evaluation_mode_and_learns_in_training_mode(monkeypatch, tmp_path):
    modes = {"act": [], "value": [], "evaluate": []}
    for name, seen in modes.items():
        genuine = getattr(MLPPolicy, name)

        def noted(self, *arguments, genuine=genuine, seen=seen):
            seen.append(self.training)
            return genuine(self, *arguments)

        monkeypatch.setattr(MLPPolicy, name, noted)
    options = ["rollout.decisions=8", "learner.global_batch=64", "learner.epochs=1", "goal.env_steps=128"]
    options += ["evaluation.episodes=2", "record.episodes=0", "logger.tensorboard=false"]
    embodied.train("gym_cartpole_ppo_mlp", [*options, f"run.folder={tmp_path / 'run'}"])
    assert {name: set(seen) for name, seen in modes.items()} == {"act": {False}, "value": {False}, "evaluate": {True}}


def test_a_step_beyond_the_kl_limit_is_not_taken_and_ends_the_epochs(learner):
    """The first step is of ratio 1, so its divergence is 0; what it changes is already too much for the next."""
    once, stopped, free = (
        learner(PLAIN, lr=0.1, epochs=epochs, target_kl=limit) for epochs, limit in ((1, None), (3, 1e-9), (3, 1e9))
    )
    assert learn(once)["learner/stopped_early"] == 0
    metrics = learn(stopped)
    assert (metrics["learner/steps"], metrics["learner/stopped_early"]) == (1, 1)
    assert len(stopped.policy.asked) == 2
    assert torch.equal(stopped.policy.weight, once.policy.weight)
    metrics = learn(free)
    assert (metrics["learner/steps"], metrics["learner/stopped_early"]) == (3, 0)
    assert not torch.equal(free.policy.weight, once.policy.weight)


@pytest.mark.parametrize("micro_batch", [None, 1, 5, 12, 20])
def test_log_probabilities_computed_anew_are_each_samples_own_under_the_current_weights(learner, micro_batch):
    worker = learner({"advantage": "reinforce_pp", "loss": "decoupled_ppo"}, micro_batch=micro_batch)
    samples, idle, _ = make_samples(rollout(acting=3.0), worker.options.algorithm)
    worker._recompute_proximal(samples, idle, torch.tensor([[number, 0] for number in range(12)]))
    # the weight is 1
    assert samples.proximal_logprobs.flatten().tolist() == [-(1 + number / 4) for number in range(12)]
    assert samples.logprobs.flatten().tolist() == [-3 * (1 + number / 4) for number in range(12)]
    assert not samples.proximal_logprobs.requires_grad


@pytest.mark.parametrize(
    ("counts", "micro_batch", "global_batch", "expected"),
    [
        ((10, 20), None, None, 1),
        ((10, 20), 8, None, 3),
        ((10, 20), None, 16, 2),
        ((0, 20), 8, 16, 3),
        ((0, 20), None, None, 1),
        ((96, 100), 8, None, 13),
        ((96, 100), None, 16, 7),
    ],
)
def test_ranks_with_unequal_shares_recompute_in_equally_many_passes(
    learner, counts, micro_batch, global_batch, expected
):
    """Sharded weights are gathered in every pass: a rank that makes one fewer leaves the others waiting."""
    everywhere = torch.tensor([[number, int(number >= counts[0])] for number in range(sum(counts))])
    some, idle, _ = make_samples(rollout(), AlgorithmConfig(**PLAIN))
    for count in counts:
        worker = learner(
            {"advantage": "reinforce_pp", "loss": "decoupled_ppo"}, micro_batch=micro_batch, global_batch=global_batch
        )
        samples = some[torch.arange(count) % 12]
        worker._recompute_proximal(samples, idle, everywhere)
        assert len(worker.policy.asked) == expected
        assert samples.proximal_logprobs.flatten().tolist() == [-(1 + number % 12 / 4) for number in range(count)]
