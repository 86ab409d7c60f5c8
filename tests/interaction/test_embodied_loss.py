"""The value of the embodied loss, option by option, against numbers worked out by hand."""

import pytest
import torch
from tensordict import TensorDict

from embodied.algorithms.statistics import report
from embodied.interaction.algorithm import AlgorithmConfig, EmbodiedLoss, Samples
from policies.api import Evaluation

WRONG = 100.0  # what must not be read; the loss would show it

# Two decisions of two actions, of which the first decision's second was not executed. The three that count:
#   new / old probability   1.5 = 0.6 / 0.4     0.5 = 0.2 / 0.4     2 = 0.8 / 0.4
#   advantage               2                   -1                  -4
# Clipped to [0.8, 1.2], max(-A r, -A clip(r)):
#   max(-3, -2.4) = -2.4    max(0.5, 0.8) = 0.8    max(8, 4.8) = 8    sum 6.4
# Values 3, 1, 2 (before: 1, 1, 4) of returns 4, 3, 2; half squares of 1, 2, 0:
#   0.5    2    0    sum 2.5
NEW = [[0.6, 1.0], [0.2, 0.8]]
OLD = [[0.4, 1.0], [0.4, 0.4]]
VALUES, OLD_VALUES, RETURNS = [[3.0, WRONG], [1.0, 2.0]], [[1.0, 0.0], [1.0, 4.0]], [[4.0, 0.0], [3.0, 2.0]]
# of the tokens: 1 + 2, 3 + 4 and 5 + 6, sum 21
ENTROPY = [[[1.0, 2.0], [WRONG, WRONG]], [[3.0, 4.0], [5.0, 6.0]]]


def logprobs(probabilities):
    """Of two tokens an action, whose sum is that of the action; the second token's never changes."""
    first = torch.tensor(probabilities).log() + 1
    return torch.stack([first, torch.full_like(first, -1.0)], dim=-1)


def samples(**changes) -> Samples:
    record = {
        "logprobs": logprobs(OLD),
        "proximal_logprobs": torch.full((2, 2, 2), WRONG),
        "valid": torch.tensor([[True, False], [True, True]]),
        "advantages": torch.tensor([[2.0, WRONG], [-1.0, -4.0]]),
        "returns": torch.tensor(RETURNS),
        "state_values": torch.tensor(OLD_VALUES),
    } | changes
    count = len(record["valid"])
    numbers = {name: torch.arange(count) for name in ("trajectory", "order", "version")}
    return Samples(
        inputs=TensorDict({}, batch_size=[count]),
        tokens=torch.zeros(count, 2, 2),
        length=torch.ones(count, dtype=torch.int64),
        batch_size=[count],
        **numbers,
        **record,
    )


def evaluation(new=NEW, values=VALUES, entropy=ENTROPY) -> Evaluation:
    return Evaluation(logprobs(new), torch.tensor(entropy), torch.tensor(values, requires_grad=True))


def loss_of(batch, evaluated, **options):
    loss = EmbodiedLoss(AlgorithmConfig(**options))
    share, statistics = loss(batch, evaluated, loss.denominators(batch))
    return share, report(statistics)


@pytest.mark.parametrize(
    ("options", "policy", "fractions"),
    [
        ({}, 6.4 / 3, {"clip": 2 / 3}),
        # 1.5 is clipped to 1.3 and 0.5 to 0.6
        ({"clip_low": 0.4, "clip_high": 0.3}, (-2.6 + 0.6 + 8) / 3, {"clip": 2 / 3}),
        ({"clip_high": 0.6}, (-3.0 + 0.8 + 8) / 3, {"clip": 1 / 3}),
        ({"clip_low": 0.6}, (-2.4 + 0.5 + 8) / 3, {"clip": 1 / 3}),
        # the last term is at most 1.5 * 4
        ({"dual_clip": 1.5}, (-2.4 + 0.8 + 6) / 3, {"clip": 2 / 3, "dual_clip": 1 / 3}),
        # ratios of at most 1.25
        ({"log_ratio_clamp": (-9.0, 0.22314355)}, (-2.4 + 0.8 + 5) / 3, {"clip": 2 / 3, "log_ratio_clamp": 2 / 3}),
        # the second token of every action has ratio 1
        ({"logprob_level": "token"}, (6.4 - 2 + 1 + 4) / 6, {"clip": 1 / 3}),
        ({"aggregation": "seq-mean-token-sum"}, 6.4 / 2, {"clip": 2 / 3}),
        ({"aggregation": "seq-mean-token-mean"}, (-2.4 + 8.8 / 2) / 2, {"clip": 2 / 3}),
    ],
)
def test_every_option_of_the_ratio_reaches_the_loss(options, policy, fractions):
    share, found = loss_of(samples(), evaluation(), **options)
    assert share.item() == pytest.approx(policy + 2.5 / 3)
    if options.get("aggregation") is None:
        assert found["policy/loss"] == pytest.approx(policy)
    for name in ("clip", "dual_clip", "log_ratio_clamp"):
        assert found[f"policy/{name}_fraction"] == pytest.approx(fractions.get(name, 0))


@pytest.mark.parametrize(
    ("options", "value", "clipped"),
    [
        ({}, 2.5 / 3, 0),
        # values that moved by 0.5 at most are 1.5, 1 and 3.5, their errors 2.5, 2 and -1.5
        ({"value_clip": 0.5}, (3.125 + 2 + 1.125) / 3, 2 / 3),
        # |e| - 1/2 beyond 1
        ({"huber_delta": 1.0}, (0.5 + 1.5) / 3, 0),
        ({"value_clip": 0.5, "huber_delta": 1.0}, (2 + 1.5 + 1) / 3, 2 / 3),
    ],
)
@pytest.mark.parametrize("coefficient", [1.0, 0.5, 0.0])
def test_every_option_of_the_value_loss_reaches_the_loss(options, value, clipped, coefficient):
    share, found = loss_of(samples(), evaluation(), value_coefficient=coefficient, **options)
    assert share.item() == pytest.approx(6.4 / 3 + coefficient * value)
    assert found["value/loss"] == pytest.approx(value)
    assert found["value/clip_fraction"] == pytest.approx(clipped)


@pytest.mark.parametrize(("level", "entropy"), [("token", 21 / 6), ("action", 21 / 3), ("chunk", 21 / 2)])
def test_entropy_is_a_bonus_averaged_at_its_own_level(level, entropy):
    options = {"entropy_level": level, "logprob_level": "action"}
    share, found = loss_of(samples(), evaluation(), entropy_coefficient=0.1, **options)
    assert share.item() == pytest.approx(6.4 / 3 + 2.5 / 3 - 0.1 * entropy)
    assert found["policy/entropy"] == pytest.approx(entropy)
    assert loss_of(samples(), evaluation(), **options)[0].item() == pytest.approx(6.4 / 3 + 2.5 / 3)


@pytest.mark.parametrize(("cap", "policy", "dropped"), [(None, 27.6 / 3, 0), (3.0, -4.4 / 3, 1 / 3)])
def test_older_samples_are_clipped_around_the_proximal_weights_and_weighed_by_their_distance(cap, policy, dropped):
    # the terms above, times what the proximal weights give over what acting gave: 2, 0.5 and 4
    acting = [[0.2, 1.0], [0.8, 0.1]]
    batch = samples(logprobs=logprobs(acting), proximal_logprobs=logprobs(OLD))
    share, found = loss_of(
        batch, evaluation(), loss="decoupled_ppo", behaviour_weight_cap=cap, advantage="reinforce_pp"
    )
    assert share.item() == pytest.approx(policy)
    assert found["policy/ratio"] == pytest.approx(4 / 3)
    assert found["policy/behaviour_weight"] == pytest.approx(6.5 / 3)
    assert found["policy/behaviour_capped_fraction"] == pytest.approx(dropped)


def test_a_row_that_only_fills_up_has_no_part_in_values_of_chunks():
    """Ratios of whole chunks: 1.5 with advantage 2, and 0.5 * 2 = 1 with advantage -4; terms -2.4 and 4."""
    batch = samples(
        logprobs=logprobs([*OLD, [0.5, 0.5]]),
        proximal_logprobs=torch.full((3, 2, 2), WRONG),
        valid=torch.tensor([[True, False], [True, True], [False, False]]),
        advantages=torch.tensor([2.0, -4.0, WRONG]),
        returns=torch.tensor([[4.0], [3.0], [0.0]]),
        state_values=torch.tensor([[1.0], [1.0], [0.0]]),
    )
    evaluated = evaluation([*NEW, [0.9, 0.9]], [[3.0], [1.0], [WRONG]], [*ENTROPY, [[WRONG] * 2] * 2])
    share, found = loss_of(batch, evaluated, reward_level="chunk", logprob_level="chunk", entropy_level="chunk")
    assert share.item() == pytest.approx(1.6 / 2 + 2.5 / 2)
    assert found["value/mean"] == 2.0
    assert found["policy/entropy"] == 21 / 2
    share.backward()
    assert evaluated.value.grad.tolist() == [[-0.5], [-1.0], [0.0]]
