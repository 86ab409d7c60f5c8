"""Small made-up recordings whose every number is known."""

import torch

from embodied.datasets import DatasetWriter, Episode
from envs.api import ActionSpec, Bounds, CameraSpec, EnvSpec

SPEC = EnvSpec(
    id="test/Arm",
    action=ActionSpec(Bounds.CONTINUOUS, dim=2, low=(-1.0, -1.0), high=(1.0, 1.0)),
    state_dim=3,
    cameras=(CameraSpec("front", 16, 24), CameraSpec("wrist", 16, 24)),
    privileged_dim=4,
    instructions=("push the cube", "pull the cube"),
    episode_steps=9,
    control_hz=20.0,
    tasks=2,
    initial_states=(0, 0),
    versions={"simulator": "1.0"},
)
ORIGIN = {"seed": 3, "noise": 0.1, "env": {"cameras": ["front", "wrist"]}}


def make_episode(number: int, steps: int = 5, spec: EnvSpec = SPEC) -> Episode:
    """Episode `number`: smooth pictures that a video keeps recognisable, and numbers that tell episode and step."""
    generator = torch.Generator().manual_seed(number)
    count = torch.arange(steps)
    success = count == steps - 1 if number % 2 == 0 else torch.zeros(steps).bool()
    camera = spec.cameras[0] if spec.cameras else None
    images = None
    if camera is not None:
        ramp = torch.linspace(0, 60, camera.width)[None, None, None, :, None].expand(
            steps, len(spec.cameras), camera.height, camera.width, 3
        )
        base = (
            20 * number
            + 8 * count[:, None, None, None, None]
            + 50 * torch.arange(len(spec.cameras))[:, None, None, None]
        )
        images = (ramp + base).clamp(0, 255).to(torch.uint8).contiguous()
    labels = torch.rand(steps, spec.action.dim, generator=generator) * 2 - 1
    return Episode(
        state=torch.rand(steps, spec.state_dim, generator=generator),
        privileged=torch.rand(steps, spec.privileged_dim, generator=generator) if spec.privileged_dim else None,
        actions=labels + 0.1,
        labels=labels,
        rewards=torch.rand(steps, generator=generator),
        success=success,
        images=images,
        instruction=spec.instructions[number % len(spec.instructions)],
        assignment=(number % 2, -1, 100 + number),
    )


def write_dataset(folder, count: int = 3, spec: EnvSpec = SPEC):
    """A dataset of `count` episodes of 5, 6, 7, ... steps."""
    with DatasetWriter(folder, spec, 20.0, ORIGIN) as writer:
        for number in range(count):
            writer.add(number, make_episode(number, 5 + number, spec))
    return folder


def assert_same(actual: Episode, expected: Episode, *, without: tuple[str, ...] = ()) -> None:
    """Equal to the bit, but for the named fields."""
    assert actual.tensors().keys() - set(without) == expected.tensors().keys() - set(without)
    for name, tensor in expected.tensors().items():
        if name not in without:
            assert torch.equal(actual.tensors()[name], tensor), name
    assert actual.instruction == expected.instruction
    assert "assignment" in without or actual.assignment == expected.assignment
