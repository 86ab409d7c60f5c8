"""A tiny OpenVLA-OFT trained by the real loop in a world whose right answers are known.

The world counts control steps: at count t it pays t + action[0] / 4, and an episode ends with success at count
`seed % 100`, or is cut at 20. So every reward, end and value target can be worked out from assignments and actions.
"""

import dataclasses

import pytest
import torch
import yaml

from embodied.interaction import learner_worker
from embodied.interaction.algorithm import EmbodiedLoss
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.train import train
from embodied.runs.folder import create_run_folder
from embodied.runs.metrics import read_metrics
from envs import registry
from policies.openvla_oft.model import OpenVLAOFTPolicy

LIMIT, CHUNK, ENVS = 20, 3, 4
SMALL = [
    "env={id: test/scripted, num_envs: 4, processes: 0}",
    "policy={name: openvla_oft/tiny, chunk: 3, sizes: {image_size: 28, layers: 1, width: 32, vision_layers: 2, "
    "vision_width: 32}}",
    "learner={epochs: 1, lr: 1.0e-3}",
    "rollout={decisions: 8}",
    "evaluation={every: 0, episodes: 3}",
    "record.episodes=0",
    "logger.tensorboard=false",
    "goal={at_least: null, env_steps: 1}",
]
PPO = ["algorithm={gamma: 0.9, gae_lambda: 0.8, normalize_advantages: false}", "policy.value=action"]
GRPO = [
    "algorithm={advantage: grpo, loss: ppo, group_size: 2, logprob_level: token, aggregation: trajectory-length}",
    "policy.value=none",
    "env.auto_reset=disabled",
    "rollout.start=fresh",
]


@dataclasses.dataclass
class Seen:
    """What passed through the loop: the learner's trajectories and samples, losses, and how acting was sampled."""

    trajectories: list
    samples: list
    losses: list
    sampled: list
    weights: list
    metrics: list


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Trains by a recipe of overrides and tells what was seen."""
    monkeypatch.setitem(
        registry._BUILT_IN,
        "test",
        registry._Adapter("tests.interaction.scripted_world:Config", "tests.interaction.scripted_world"),
    )

    def start(*overrides):
        seen = Seen([], [], [], [], [], [])
        make_samples, loss, act = learner_worker.make_samples, EmbodiedLoss.__call__, OpenVLAOFTPolicy.act
        learn = learner_worker.LearnerWorker.learn

        def watched_samples(trajectory, options, ranks=None):
            result = make_samples(trajectory, options, ranks)
            seen.trajectories.append(trajectory.clone())
            seen.samples.append(result[0].clone())
            return result

        def watched_loss(self, batch, evaluation, denominators):
            result = loss(self, batch, evaluation, denominators)
            seen.losses.append(result[0].item())
            return result

        def watched_act(self, inputs, sampling, noise):
            output = act(self, inputs, sampling, noise)
            seen.sampled.append((sampling, self.evaluate(inputs, output.tokens, sampling), output))
            return output

        async def watched_learn(self, iteration):
            before = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}
            update = await learn(self, iteration)
            after = self.policy.state_dict()
            seen.weights.append({name for name in before if not torch.equal(before[name], after[name])})
            return update

        monkeypatch.setattr(learner_worker, "make_samples", watched_samples)
        monkeypatch.setattr(EmbodiedLoss, "__call__", watched_loss)
        monkeypatch.setattr(OpenVLAOFTPolicy, "act", watched_act)
        monkeypatch.setattr(learner_worker.LearnerWorker, "learn", watched_learn)
        folder = create_run_folder(tmp_path, "test")
        train(parse_recipe("test", _nested([*SMALL, *overrides])), folder, command="test")
        seen.metrics = read_metrics(folder.metrics)
        return seen

    return start


def _nested(words):
    """`a.b=value` and `a={...}` words, later ones over earlier ones, as nested values."""
    values = {}
    for word in words:
        key, text = word.split("=", 1)
        section, _, name = key.partition(".")
        value = yaml.safe_load(text)
        values.setdefault(section, {}).update({name: value} if name else value)
    return values


def length(assignment) -> int:
    """Control steps of the episode that an assignment starts."""
    return min(int(assignment[2]) % 100 or LIMIT, LIMIT)


def walk(record):
    """For every environment: (decision, action, count, episode's length) of each control step that was executed."""
    for env in range(record.rewards.shape[1]):
        steps, count = [], 0
        for t in range(len(record.rewards)):
            for c in range(CHUNK):
                if not record.valid[t, env, c]:
                    continue
                count += 1
                last = length(record.assignments[t, env])
                steps.append((t, c, count, last))
                count = 0 if count == last else count
        yield env, steps


@pytest.mark.parametrize("critic", ["prompt", "privileged"])
def test_ppo_in_chunks_learns_from_the_steps_that_were_executed_and_values_of_every_action(run, critic):
    seen = run(*PPO, f"policy.critic={critic}")
    record, samples = seen.trajectories[0], seen.samples[0]
    gamma, decay = 0.9, 0.9 * 0.8
    wanted = torch.zeros(8, ENVS, CHUNK)
    for env, steps in walk(record):
        assert sum(record.valid[:, env].flatten().tolist()) == len(steps)
        following, advantage = record.state_values[8, env, 0], 0.0
        for t, c, count, last in reversed(steps):
            ended = count == last
            success = ended and last == int(record.assignments[t, env, 2]) % 100
            assert record.rewards[t, env, c] == pytest.approx(count + float(record.actions[t, env, c, 0]) / 4)
            assert bool(record.terminated[t, env, c]) == success
            assert bool(record.truncated[t, env, c]) == (ended and not success)
            assert ended or c == CHUNK - 1 or bool(record.valid[t, env, c + 1])  # a chunk stops where its episode does
            if (
                ended
            ):  # success ends for good; a cut episode goes on in its true last observation, never in the next one
                following, advantage = 0.0 if success else record.final_values[t, env, 0], 0.0
            value = record.state_values[t, env, c]
            advantage = record.rewards[t, env, c] + gamma * following - value + decay * advantage
            wanted[t, env, c] = advantage
            following = value
    assert torch.allclose(samples.advantages, wanted.flatten(0, 1)[record.valid.flatten(0, 1).any(-1)], atol=1e-4)
    assert torch.equal(samples.valid, record.valid.flatten(0, 1)[record.valid.flatten(0, 1).any(-1)])
    assert not samples.advantages[~samples.valid].any()
    assert any(int(valid.sum()) < CHUNK for valid in samples.valid), "no episode ended inside a chunk"


def test_partial_resets_begin_the_next_episode_of_the_environments_that_ended_and_of_no_other(run):
    record = run(*PPO).trajectories[0]
    for env in range(ENVS):
        count = 0
        for t in range(8):
            assert (
                int(record.inputs["pixels"][t, env].max()) == count
            )  # the world's pictures are as bright as its count
            count += int(record.valid[t, env].sum())
            over = count == length(record.assignments[t, env])
            if t < 7:
                same = torch.equal(record.assignments[t + 1, env], record.assignments[t, env])
                assert same != over
            count = 0 if over else count


def test_relative_rewards_pay_every_step_once(run):
    record = run(*PPO, "env.reward_form=relative").trajectories[0]
    for env, steps in walk(record):
        previous = 0.0
        for t, c, count, last in steps:
            absolute = count + float(record.actions[t, env, c, 0]) / 4
            assert record.rewards[t, env, c] == pytest.approx(absolute - previous, abs=1e-5)
            previous = 0.0 if count == last else absolute


def scores_of(record):
    """Return of each environment's first episode."""
    totals = []
    for env, steps in walk(record):
        totals.append(sum(count + float(record.actions[t, env, c, 0]) / 4 for t, c, count, _ in steps))
    return torch.tensor(totals)


def test_grpo_compares_attempts_at_one_world_by_their_first_episode_and_counts_trajectories_alike(run):
    seen = run(*GRPO)
    record, samples = seen.trajectories[0], seen.samples[0]
    for first in (0, 2):
        assert torch.equal(record.assignments[:, first], record.assignments[:, first + 1])
        assert bool((record.group_ids[:, first] == record.group_ids[:, first + 1]).all())
        assert not torch.equal(record.tokens[:, first], record.tokens[:, first + 1])
    assert not torch.equal(record.assignments[0, 0], record.assignments[0, 2])
    for env, steps in walk(record):
        assert len(steps) == length(record.assignments[0, env])  # one episode; the rest of the rollout is not valid
    scores = scores_of(record).view(2, 2)
    wanted = ((scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True)).flatten()
    found = samples.advantages[samples.valid]
    env_of = samples.order % (1 << 32)
    assert torch.allclose(found, wanted[env_of.unsqueeze(1).expand_as(samples.valid)[samples.valid]], atol=1e-3)
    # every ratio is 1 in the first update, so the loss is the mean over trajectories of minus their advantage
    assert seen.losses[0] == pytest.approx(-float(wanted.mean()), abs=1e-4)


def test_groups_that_all_fail_or_all_succeed_can_be_left_out(run):
    found = run(*GRPO)
    means = scores_of(found.trajectories[0]).view(2, 2).mean(1)
    low = float(means.mean())  # keeps the group with the larger mean
    seen = run(*GRPO, f"algorithm.filter_rewards=[{low}, 1000]")
    kept = set((seen.samples[0].order % (1 << 32)).tolist())
    assert kept == ({0, 1} if means[0] > means[1] else {2, 3})
    assert seen.metrics[-1]["metrics"]["group/kept_fraction"] == 0.5
    assert seen.losses[0] == pytest.approx(
        0.0, abs=1e-4
    )  # two trajectories of opposite advantage, nothing else counted


def test_while_the_critic_warms_up_the_actor_stays_and_then_both_move(run):
    seen = run(*PPO, "algorithm.critic_warmup=1", f"goal.env_steps={ENVS * CHUNK * 8}")
    assert len(seen.weights) == 2
    assert all(name.startswith("value_head.") for name in seen.weights[0])
    assert seen.weights[0]
    assert any(name.startswith("model.language_model") for name in seen.weights[1])
    assert any(name.startswith("value_head.") for name in seen.weights[1])


def test_training_and_evaluation_each_act_at_their_own_temperature_and_say_so(run):
    seen = run(*PPO, "algorithm.sampling={temperature: 0.5}", "evaluation.sampling={decode: greedy, temperature: 2.0}")
    assert {(s.decode, s.temperature) for s, *_ in seen.sampled} == {("sample", 0.5), ("greedy", 2.0)}
    for _, evaluation, output in seen.sampled:
        assert torch.allclose(output.logprobs, evaluation.logprobs, atol=1e-5)
    # the same tokens are surer at the lower temperature: entropies of one policy, in order
    entropy = {s.decode: float(e.entropy.mean()) for s, e, _ in seen.sampled}
    assert entropy["sample"] < entropy["greedy"]
