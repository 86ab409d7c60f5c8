"""A worker that reads trajectories beside the learner; importable by name, as processes of their own need it."""

from embodied.interaction.trajectory import TRAJECTORY_FIELDS, Trajectory, join
from embodied.scheduler import Input, Worker


class Tap(Worker):
    """Reads the trajectories beside the learner."""

    trajectories = Input(Trajectory)

    async def take(self):
        parts = sorted([part async for part in self.trajectories], key=lambda part: part[0])
        record = join([item for _, item in parts])
        return {name: getattr(record, name).clone() for name in TRAJECTORY_FIELDS}
