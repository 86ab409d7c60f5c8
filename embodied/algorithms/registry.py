"""Advantages, losses and KL estimators by the names that recipes use, and what each needs to be there.

The functions keep their own signatures: what they take differs in kind. `needs` lets a recipe be refused before
anything starts, e.g. `gae` with a policy that has no value head.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from embodied.algorithms import advantages, divergence, groups, losses
from embodied.errors import ConfigurationError, suggest


class Need(enum.Enum):
    """What a recipe must provide for an algorithm."""

    VALUES = "values"  # a value head, or a critic
    GROUPS = "groups"  # several attempts at the same thing
    PROXIMAL = "proximal"  # log-probabilities recomputed with the policy before the update
    DEMONSTRATIONS = "demonstrations"  # actions to imitate


@dataclass(frozen=True)
class Entry:
    """A registered function and what it needs."""

    name: str
    function: Callable[..., Any]
    needs: frozenset[Need] = frozenset()


def _table(*entries: Entry) -> Mapping[str, Entry]:
    return MappingProxyType({entry.name: entry for entry in entries})


ADVANTAGES = _table(
    Entry("gae", advantages.gae, frozenset({Need.VALUES})),
    Entry("grpo", groups.grpo, frozenset({Need.GROUPS})),
    Entry("rloo", groups.rloo, frozenset({Need.GROUPS})),
    Entry("reinforce_pp", groups.reinforce_pp),
    Entry("reinforce_pp_baseline", groups.reinforce_pp_baseline, frozenset({Need.GROUPS})),
)
LOSSES = _table(
    Entry("ppo", losses.ppo),
    Entry("ppo_actor_critic", losses.ppo_actor_critic, frozenset({Need.VALUES})),
    Entry("decoupled_ppo", losses.decoupled_ppo, frozenset({Need.PROXIMAL})),
    Entry("bc", losses.bc, frozenset({Need.DEMONSTRATIONS})),
    Entry("bc_l1", losses.bc_l1, frozenset({Need.DEMONSTRATIONS})),
)
KL = _table(
    Entry("k1", divergence.kl_k1),
    Entry("k2", divergence.kl_k2),
    Entry("k3", divergence.kl_k3),
    Entry("abs", divergence.kl_abs),
)


def advantage(name: str) -> Entry:
    """The advantage registered as `name`; ConfigurationError names the valid ones."""
    return _find("advantage", ADVANTAGES, name)


def loss(name: str) -> Entry:
    """The loss registered as `name`; ConfigurationError names the valid ones."""
    return _find("loss", LOSSES, name)


def kl(name: str) -> Entry:
    """The KL estimator registered as `name`; ConfigurationError names the valid ones."""
    return _find("KL estimator", KL, name)


def _find(noun: str, table: Mapping[str, Entry], name: str) -> Entry:
    if name not in table:
        raise ConfigurationError(f"Unknown {noun} {name!r}. " + suggest(name, table, noun=f"{noun}s"))
    return table[name]
