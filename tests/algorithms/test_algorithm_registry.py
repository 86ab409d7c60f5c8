"""Algorithms by name."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from embodied.algorithms import losses, registry
from embodied.algorithms.registry import Need
from embodied.errors import ConfigurationError

DOCS = Path(__file__).parents[2] / "docs"


def test_names_that_recipes_rely_on() -> None:
    assert set(registry.ADVANTAGES) == {"gae", "grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"}
    assert set(registry.LOSSES) == {"ppo", "ppo_actor_critic", "decoupled_ppo", "bc", "bc_l1"}
    assert set(registry.KL) == {"k1", "k2", "k3", "abs"}


def test_a_name_gives_its_function() -> None:
    assert registry.advantage("gae").function.__name__ == "gae"
    assert registry.loss("ppo_actor_critic").function.__name__ == "ppo_actor_critic"
    assert registry.kl("k2").function(torch.tensor(2.0), torch.tensor(0.0)).item() == 2.0


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (registry.advantage, "grop", r"Unknown advantage 'grop'\. Did you mean 'grpo'\?"),
        (registry.loss, "pppo", r"Unknown loss 'pppo'\. Did you mean 'ppo'\?"),
        (registry.kl, "low_var_kl", r"Unknown KL estimator 'low_var_kl'\. Valid KL estimators: k1, k2, k3, abs\."),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(find, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find(name)


def test_needs_follow_from_what_the_functions_take() -> None:
    takes = {
        Need.VALUES: "values",
        Need.GROUPS: "group_ids",
        Need.PROXIMAL: "proximal_logprobs",
    }
    for entry in (*registry.ADVANTAGES.values(), *registry.LOSSES.values()):
        parameters = inspect.signature(entry.function).parameters
        for need, parameter in takes.items():
            assert (need in entry.needs) == (parameter in parameters), (entry.name, need)


def test_every_algorithm_is_documented_by_name() -> None:
    text = (DOCS / "algorithms.md").read_text()
    for table in (registry.ADVANTAGES, registry.LOSSES, registry.KL):
        for name in table:
            assert f"`{name}`" in text, name


def test_every_metric_that_a_loss_reports_is_explained() -> None:
    x, mask = torch.zeros(1, 1), torch.ones(1, 1).bool()
    clip = losses.Clip()
    records = [
        losses.ppo_actor_critic(x, x, x, mask, x, x, x, mask, clip=clip).statistics,
        losses.decoupled_ppo(x, x, x, x, mask, clip=clip).statistics,
        losses.bc(x, mask).statistics,
        losses.bc_l1(x, x, mask).statistics,
        losses.entropy_terms(x, mask)[1],
        losses.kl_terms(x, x, mask, estimator=registry.kl("k3").function)[1],
    ]
    text = (DOCS / "metrics.md").read_text()
    assert [name for record in records for name in record if f"| `{name}` |" not in text] == []
