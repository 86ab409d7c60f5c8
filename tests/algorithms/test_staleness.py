"""Ages of samples, by hand."""

import pytest
import torch

from embodied.algorithms.staleness import staleness
from embodied.errors import CorrectnessAlarm


def test_shares_of_all_ages_sum_to_one():
    found = {name: float(value.value()) for name, value in staleness(torch.tensor([0, 2, 1, 2]), 3).items()}
    assert found == {
        "rollout/staleness": 1.25,
        "rollout/staleness_max": 2,
        "rollout/staleness_share_0": 0.25,
        "rollout/staleness_share_1": 0.25,
        "rollout/staleness_share_2": 0.5,
        "rollout/staleness_share_3": 0,
    }


def test_where_none_is_allowed_there_is_nothing_to_share_out():
    assert set(staleness(torch.tensor([0, 0]), 0)) == {"rollout/staleness", "rollout/staleness_max"}


@pytest.mark.parametrize(("ages", "allowed"), [([0, 2], 1), ([-1, 0], 1), ([1], 0)])
def test_older_than_allowed_or_newer_than_the_learner_is_an_alarm(ages, allowed):
    with pytest.raises(CorrectnessAlarm, match=f"max_staleness is {allowed}"):
        staleness(torch.tensor(ages), allowed)
