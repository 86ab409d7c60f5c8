"""The scheduler: declares a flow of stages, plans where and in which pieces it runs, and runs it.

It knows workers, channels, devices and time; it knows nothing of environments, policies or learning.
"""

from embodied.scheduler.flow import ACCELERATOR, CPU, Edge, Flow, Stage
from embodied.scheduler.plan import Plan, StagePlan
from embodied.scheduler.routing import Route
from embodied.scheduler.worker import Input, Output, Worker, WorkerContext

__all__ = [
    "ACCELERATOR",
    "CPU",
    "Edge",
    "Flow",
    "Input",
    "Output",
    "Plan",
    "Route",
    "Stage",
    "StagePlan",
    "Worker",
    "WorkerContext",
]
