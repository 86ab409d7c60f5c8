"""The launcher that a plan names."""

from __future__ import annotations

from embodied.scheduler.flow import Flow
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.launcher import Launcher
from embodied.scheduler.options import ClusterConfig
from embodied.scheduler.plan import Plan


def make_launcher(flow: Flow, plan: Plan, *, seed: int, cluster: ClusterConfig) -> Launcher:
    """A launcher, not yet started, of the kind that the plan wants."""
    if plan.launcher == "inline":
        return InlineLauncher(flow, plan, seed=seed, deadline=cluster.deadline_seconds)
    from embodied.scheduler.ray_launcher import RayLauncher  # loads Ray

    options = {"address": cluster.address, "threads": cluster.threads}
    return RayLauncher(flow, plan, seed=seed, deadline=cluster.deadline_seconds, **options)
