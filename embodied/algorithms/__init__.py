"""Pure functions of tensors: advantages, losses, KL, masked and level reductions, statistics and correctness alarms.

Nothing here knows of environments, policies, workers or files. docs/algorithms.md has the formulas and sources.
"""

from embodied.algorithms.advantages import Advantages, Bootstrap, discounted_returns, gae
from embodied.algorithms.aggregation import Aggregation, aggregate, loss_denominator, trajectory_lengths
from embodied.algorithms.divergence import entropy_from_logits, kl_abs, kl_k1, kl_k2, kl_k3
from embodied.algorithms.groups import (
    broadcast_to_steps,
    check_groups,
    cut_short,
    filter_rewards,
    first_episode,
    first_episode_return,
    grpo,
    in_whole_groups,
    informative_groups,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
)
from embodied.algorithms.levels import Level, check_levels
from embodied.algorithms.losses import (
    Clip,
    Loss,
    Terms,
    bc,
    bc_l1,
    decoupled_ppo,
    entropy_terms,
    kl_terms,
    ppo,
    ppo_actor_critic,
    value_terms,
)
from embodied.algorithms.statistics import Deviation, Statistic, all_reduce, gather_rows, merge, report, whiten

__all__ = [
    "Advantages",
    "Aggregation",
    "Bootstrap",
    "Clip",
    "Deviation",
    "Level",
    "Loss",
    "Statistic",
    "Terms",
    "aggregate",
    "all_reduce",
    "bc",
    "bc_l1",
    "broadcast_to_steps",
    "check_groups",
    "check_levels",
    "cut_short",
    "decoupled_ppo",
    "discounted_returns",
    "entropy_from_logits",
    "entropy_terms",
    "filter_rewards",
    "first_episode",
    "first_episode_return",
    "gae",
    "gather_rows",
    "grpo",
    "in_whole_groups",
    "informative_groups",
    "kl_abs",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_terms",
    "loss_denominator",
    "merge",
    "ppo",
    "ppo_actor_critic",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "report",
    "rloo",
    "trajectory_lengths",
    "value_terms",
    "whiten",
]
