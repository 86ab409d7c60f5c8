"""Playing chosen evaluation episodes again, action by action, so that every control step can be seen.

An evaluation executes chunks and looks at their ends only. Here a chunk's actions are sent one at a time: the same
episodes come out (noise belongs to the episode, not to the environment), and between two actions there is time to draw
a picture and to note what was shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from embodied.errors import SimulatorError
from embodied.interaction.assignments import evaluation_assignments
from embodied.interaction.deciding import decide
from embodied.interaction.recipe import EvaluationConfig
from embodied.random import derive_seed
from envs import registry
from envs.api import EnvConfig, Observation, VectorEnv
from policies.api import Policy

FORWARD_ROWS = 16  # as in an evaluation, where a forward pass of another shape could differ in the last bit


@dataclasses.dataclass(frozen=True)
class PlayedStep:
    """One control step of one episode.

    episode: its number in the evaluation. row: the environment that plays it. step: control steps before this one.
    observation: of one row, before the action. action: float32 [A], executed. value: the critic's, of the decision.
    reward, success: what the action led to. succeeded: at this step or before. ended: the episode is over.
    picture: uint8 [H, W, 3] for people, before the action; None if not asked for.
    """

    episode: int
    row: int
    step: int
    assignment: tuple[int, int, int]
    observation: Observation
    action: torch.Tensor
    value: float | None
    reward: float
    success: bool
    succeeded: bool
    ended: bool
    picture: torch.Tensor | None


def playback_env(env: EnvConfig, num_envs: int, *, pictures: bool) -> VectorEnv:
    """Environments to play in: one slot, no resets of their own; `pictures` prepares them for drawing."""
    # as many processes as are useful for this number, unless there shall be none
    processes = 0 if env.processes == 0 else None
    plain = dataclasses.replace(env, num_envs=num_envs, slots=1, auto_reset="disabled", processes=processes)
    return registry.make(registry.with_rendering(plain) if pictures else plain)


def play(
    policy: Policy,
    env: VectorEnv,
    options: EvaluationConfig,
    episodes: Sequence[int],
    *,
    device: str,
    pictures: bool,
    seed: int = 0,
) -> Iterator[PlayedStep]:
    """Play `episodes` (numbers within the evaluation that `options` describe) and yield every step of every one.

    seed: of the run or evaluation that the noise is from. Raises SimulatorError if a simulator dies meanwhile.
    """
    policy.make_room(env.spec.instructions)
    policy.to(device).eval()
    everything = evaluation_assignments(options.seed, max([options.episodes, *(e + 1 for e in episodes)]), env.spec)
    table = everything.stack()
    noise_seed = derive_seed(seed, "evaluate")
    queue = iter(episodes)
    playing = np.array([next(queue, -1) for _ in range(env.num_envs)])
    steps = np.zeros(env.num_envs, dtype=np.int64)
    decisions = np.zeros(env.num_envs, dtype=np.int64)
    succeeded = np.zeros(env.num_envs, dtype=bool)
    observation = env.reset(everything[torch.from_numpy(np.maximum(playing, 0))])
    while (playing >= 0).any():
        output, _ = decide(
            policy,
            observation,
            np.maximum(playing, 0),
            decisions,
            options.sampling,
            seed=noise_seed,
            forward_rows=FORWARD_ROWS,
            device=device,
        )
        decisions += 1
        over: list[int] = []
        for index in range(output.actions.shape[1]):
            rows = [row for row in np.flatnonzero(playing >= 0).tolist() if row not in over]
            if not rows:
                break
            frames = env.render(rows) if pictures else None
            shown = {row: observation.select(torch.tensor([row])) for row in rows}
            result = env.step(output.actions[:, index : index + 1])
            if bool(result.failed[rows].any()):
                raise SimulatorError("a simulator died while episodes were played again; start the command once more")
            for place, row in enumerate(rows):
                succeeded[row] |= bool(result.success[row, 0])
                ended = bool(result.ended[row])
                task, state, world = table[playing[row]].tolist()
                yield PlayedStep(
                    episode=int(playing[row]),
                    row=row,
                    step=int(steps[row]),
                    assignment=(task, state, world),
                    observation=shown[row],
                    action=output.actions[row, index].clone(),
                    value=None if output.value is None else float(output.value[row, 0]),
                    reward=float(result.reward[row, 0]),
                    success=bool(result.success[row, 0]),
                    succeeded=bool(succeeded[row]),
                    ended=ended,
                    picture=None if frames is None else frames[place],
                )
                if ended:
                    over.append(row)
            steps[rows] += 1
            observation = result.observation
        if over:
            for row in over:
                playing[row] = next(queue, -1)
            steps[over] = decisions[over] = 0
            succeeded[over] = False
            mask = torch.zeros(env.num_envs, dtype=torch.bool)
            mask[over] = True
            observation = env.reset(everything[torch.from_numpy(np.maximum(playing, 0))], mask)
