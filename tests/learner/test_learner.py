import pytest
import torch
from torch import nn

from embodied.errors import CorrectnessAlarm
from embodied.learner.learner import Learner, LearnerConfig


def regression(**options):
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 1), nn.Linear(3, 1)
    groups = {"actor": list(actor.parameters()), "critic": list(critic.parameters())}
    return actor, critic, Learner(groups, LearnerConfig(**options), "cpu")


def data(rows=12):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 1, generator=generator)


def loss_of(actor, critic, rows):
    def loss(batch):
        x, y = batch
        return (((actor(x) - y) ** 2).sum() + ((critic(x) - y) ** 2).sum()) / rows, {}

    return loss


def test_micro_batches_take_the_step_of_the_whole_batch():
    results = []
    x, y = data()
    for size in (12, 5, 1):
        actor, critic, learner = regression(lr=0.1, grad_clip=0.05)
        learner.step(zip(x.split(size), y.split(size), strict=True), loss_of(actor, critic, 12))
        results.append(torch.cat([actor.weight, critic.weight]).detach())
    assert torch.allclose(results[0], results[1], atol=1e-7)
    assert torch.allclose(results[0], results[2], atol=1e-7)


def test_adams_first_step_is_the_learning_rate_and_the_critic_has_its_own():
    actor, critic, learner = regression(lr=0.1, value_lr=0.01, eps=1e-12, grad_clip=None)
    before = [actor.weight.detach().clone(), critic.weight.detach().clone()]
    learner.step([data()], loss_of(actor, critic, 12))
    assert torch.allclose((actor.weight - before[0]).abs(), torch.full((1, 3), 0.1), atol=1e-6)
    assert torch.allclose((critic.weight - before[1]).abs(), torch.full((1, 3), 0.01), atol=1e-6)


def test_a_frozen_role_stays_to_the_bit_while_the_other_learns():
    actor, critic, learner = regression()
    before = [actor.weight.detach().clone(), critic.weight.detach().clone()]
    learner.step([data()], loss_of(actor, critic, 12), frozen=("actor",))
    assert torch.equal(actor.weight, before[0])
    assert not torch.equal(critic.weight, before[1])


def test_the_reported_gradient_norm_is_that_before_clipping():
    actor, critic, learner = regression(grad_clip=1e-3)
    statistics, _ = learner.step([data()], loss_of(actor, critic, 12))
    x, y = data()
    torch.manual_seed(0)
    fresh = [nn.Linear(3, 1), nn.Linear(3, 1)]
    sum(((layer(x) - y) ** 2).sum() / 12 for layer in fresh).backward()
    norm = torch.cat([p.grad.flatten() for layer in fresh for p in layer.parameters()]).norm()
    assert float(statistics["learner/gradient_norm"].value()) == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_or_gradient_that_is_not_finite_stops_before_the_step(bad):
    actor, _, learner = regression()
    before = actor.weight.detach().clone()
    with pytest.raises(CorrectnessAlarm, match="The loss is"):
        learner.step([data()], lambda batch: (actor(batch[0]).sum() * bad, {}))
    with pytest.raises(CorrectnessAlarm, match="gradient"):
        learner.step([data()], lambda batch: ((actor(batch[0]) * 0).sum().abs().sqrt(), {}))
    assert torch.equal(actor.weight, before)


def test_a_refused_step_leaves_parameters_and_optimiser_alone():
    actor, critic, learner = regression()
    before = actor.weight.detach().clone()
    _, taken = learner.step([data()], loss_of(actor, critic, 12), accept=lambda statistics: False)
    assert not taken
    assert torch.equal(actor.weight, before)
    assert learner.state_dict() == {"state": {}}


def test_restored_optimiser_state_continues_to_the_bit():
    actor, critic, learner = regression()
    for _ in range(3):
        learner.step([data()], loss_of(actor, critic, 12))
    state = learner.state_dict()
    state = {"state": {k: {n: v.clone() for n, v in entry.items()} for k, entry in state["state"].items()}}
    weights = [p.detach().clone() for p in (*actor.parameters(), *critic.parameters())]
    learner.step([data()], loss_of(actor, critic, 12))
    other_actor, other_critic, other = regression()
    with torch.no_grad():
        for parameter, weight in zip((*other_actor.parameters(), *other_critic.parameters()), weights, strict=True):
            parameter.copy_(weight)
    other.load_state_dict(state)
    other.step([data()], loss_of(other_actor, other_critic, 12))
    assert torch.equal(actor.weight, other_actor.weight)
    assert torch.equal(critic.weight, other_critic.weight)


def test_bfloat16_computes_in_it_and_keeps_float32_parameters():
    actor, critic, learner = regression(precision="bfloat16")
    seen = []

    def loss(batch):
        out = actor(batch[0])
        seen.append(out.dtype)
        return (out.float() - batch[1]).square().mean() + critic(batch[0]).float().square().mean(), {}

    learner.step([data()], loss)
    assert seen == [torch.bfloat16]
    assert actor.weight.dtype == torch.float32


def test_learning_rates_rise_over_the_warm_up_and_a_resumed_learner_is_where_it_was():
    actor, critic, learner = regression(lr=0.1, value_lr=0.01, warmup_steps=4)
    rates = []
    for _ in range(5):
        learner.step([data()], loss_of(actor, critic, 12))
        rates.append([group["lr"] for group in learner.optimizer.param_groups])
    assert rates == [pytest.approx([0.1 * f, 0.01 * f]) for f in (0.25, 0.5, 0.75, 1.0, 1.0)]
    actor, critic, other = regression(lr=0.1, value_lr=0.01, warmup_steps=9)
    other.load_state_dict(learner.state_dict())
    other.step([data()], loss_of(actor, critic, 12))
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 6 / 9)


def test_learning_rates_fall_after_the_warm_up_and_stay_where_they_end():
    actor, critic, learner = regression(lr=0.1, value_lr=0.01, warmup_steps=2, decay_steps=4, decay_to=0.2)
    rates = []
    for _ in range(8):
        learner.step([data()], loss_of(actor, critic, 12))
        rates.append([group["lr"] for group in learner.optimizer.param_groups])
    assert rates == [pytest.approx([0.1 * f, 0.01 * f]) for f in (0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2)]
    actor, critic, other = regression(lr=0.1, decay_steps=16, decay_to=0.0)
    other.load_state_dict(learner.state_dict())
    other.step([data()], loss_of(actor, critic, 12))
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5)


@pytest.mark.parametrize("wrong", [{"decay_steps": -1}, {"decay_to": 1.5}])
def test_an_impossible_decay_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LearnerConfig(**wrong)
