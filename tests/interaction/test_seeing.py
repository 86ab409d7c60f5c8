"""Learning to look: the vision side alone learns where small things are, from what only the simulator knows."""

import pytest
import torch
from tensordict import TensorDict

import policies
from embodied.commands.main import main
from embodied.datasets import DatasetWriter, Episode
from embodied.errors import ConfigurationError
from embodied.interaction.imitation import fit
from embodied.interaction.imitation_recipe import compose_sft
from embodied.interaction.seeing import SeeingConfig, learn_to_see, unsaid
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import read_metrics
from envs.api import ActionSpec, Bounds, CameraSpec, EnvSpec
from policies.api import Interface

SIDE, SPOT = 56, 5
SIZES = {"image_size": SIDE, "layers": 1, "vision_layers": 2, "width": 64, "vision_width": 32}


def spots(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Dark pictures uint8 [n, 1, 56, 56, 3] with a bright spot of 5 x 5 somewhere, and where, float32 [n, 2]."""
    places = torch.randint(0, SIDE - SPOT, (count, 2), generator=torch.Generator().manual_seed(seed))
    pictures = torch.full((count, 1, SIDE, SIDE, 3), 20, dtype=torch.uint8)
    for picture, (row, column) in zip(pictures, places.tolist(), strict=True):
        picture[0, row : row + SPOT, column : column + SPOT] = torch.tensor([220, 30, 30], dtype=torch.uint8)
    return pictures, places.float()


def fresh():
    interface = Interface(
        state_dim=2,
        action_kind="continuous",
        action_dim=2,
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
        choices=0,
        cameras=1,
        instructions=("go to the spot",),
    )
    return policies.build("openvla_oft/tiny", interface, seed=0, chunk=2, value="none", sizes=SIZES)


def test_only_what_the_state_does_not_tell_is_asked_for():
    generator = torch.Generator().manual_seed(0)
    state = torch.rand(50, 3, generator=generator)
    hidden = torch.rand(50, 2, generator=generator) * 7 + 3
    privileged = torch.cat([state[:, 2:], hidden, torch.full((50, 1), 4.0), state[:, :1]], dim=1)
    found = unsaid(state, privileged)
    assert found.shape == (50, 2)
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(dim=0), torch.ones(2))
    assert torch.corrcoef(torch.stack([found[:, 1], hidden[:, 1]]))[0, 1] > 0.999


def test_a_fresh_policy_learns_where_a_small_thing_is_and_only_its_vision_side_changes():
    policy = fresh()
    pictures, places = spots(1500, seed=1)
    targets = unsaid(torch.zeros(1500, 1), places)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    reported = []
    error = learn_to_see(
        policy,
        TensorDict({"pixels": pictures}, batch_size=[1500]),
        targets,
        SeeingConfig(steps=350, lr=1e-3),
        seed=0,
        report=lambda step, error: reported.append((step, error)),
    )
    assert [step for step, _ in reported] == list(range(1, 351))
    assert reported[0][1] > 0.8
    assert error < 0.35  # with timm's small positions it is still 1.0
    changed = {name for name, tensor in policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all(name.startswith(("model.vision_backbone.", "model.projector.")) for name in changed), changed
    assert not policy.training


SPEC = EnvSpec(
    id="test/Spot",
    action=ActionSpec(Bounds.CONTINUOUS, dim=2, low=(-1.0, -1.0), high=(1.0, 1.0)),
    state_dim=2,
    privileged_dim=4,
    cameras=(CameraSpec("front", SIDE, SIDE),),
    instructions=("go to the spot",),
    episode_steps=8,
    control_hz=20.0,
)


def record(folder, *, privileged: bool):
    spec = SPEC if privileged else SPEC.__class__(**{**SPEC.__dict__, "privileged_dim": 0})
    with DatasetWriter(folder, spec, 20.0, {}) as writer:
        for number in range(6):
            images, places = spots(8, seed=number)
            state = torch.rand(8, 2, generator=torch.Generator().manual_seed(number))
            episode = Episode(
                state=state,
                privileged=torch.cat([state, places], dim=1) if privileged else None,
                images=images[:, None, 0] if images.dim() == 4 else images,
                actions=places / SIDE,
                labels=places / SIDE,
                rewards=torch.zeros(8),
                success=torch.zeros(8).bool(),
                instruction="go to the spot",
            )
            writer.add(number, episode)
    return folder


OPTIONS = [
    "augment=null",
    "policy.image.crop_area=1.0",
    "policy.chunk=2",
    "policy.value=none",
    "policy.sizes={image_size: 56, layers: 1, vision_layers: 2, width: 64, vision_width: 32}",
    "learner.global_batch=16",
    "learner.epochs=1",
    "logger.tensorboard=false",
]


def run(tmp_path, data, *overrides, policy="openvla_oft/tiny", name="run"):
    folder = RunFolder(tmp_path / name)
    folder.path.mkdir()
    fit(compose_sft(policy, [str(data)], [*OPTIONS, *overrides]), folder, command="test")
    return folder


def test_a_fit_can_begin_with_looking(tmp_path):
    data = record(tmp_path / "set", privileged=True)
    plain, looked = run(tmp_path, data, name="plain"), run(tmp_path, data, "seeing.steps=100", name="looked")
    assert "learning to look: 100 steps of the vision side, 2 numbers a picture" in looked.log.read_text()
    first = [read_metrics(folder.metrics)[0]["metrics"]["sft/loss"] for folder in (plain, looked)]
    assert first[0] != first[1]
    again = run(tmp_path, data, "seeing.steps=100", name="again")
    last = [read_metrics(folder.metrics)[-1]["metrics"]["sft/loss"] for folder in (looked, again)]
    assert last[0] == last[1]


def test_looking_is_refused_where_nothing_is_known(tmp_path, capsys):
    arguments = ["sft", "openvla_oft/tiny", str(record(tmp_path / "bare", privileged=False)), "seeing.steps=2"]
    assert main([*arguments, f"run.folder={tmp_path / 'fit'}"]) == 2
    assert "seeing.steps=0" in capsys.readouterr().err
    assert not (tmp_path / "fit").exists()
    with pytest.raises(ConfigurationError, match=r"none of it .*seeing\.steps=0"):
        run(tmp_path, record(tmp_path / "set", privileged=False), "seeing.steps=2")
    with pytest.raises(ConfigurationError, match="not mlp; set it to 0"):
        compose_sft("mlp", [str(tmp_path / "set")], ["seeing.steps=2"])
    with pytest.raises(ConfigurationError, match="lr is 0"):
        compose_sft("openvla_oft/tiny", [str(tmp_path / "set")], ["seeing.lr=0"])
    adapted = fresh()
    adapted.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="vision side of this policy is fixed"):
        learn_to_see(adapted, TensorDict({}, batch_size=[9]), torch.rand(9, 2), SeeingConfig(steps=1), seed=0)
    state = torch.rand(9, 2)
    with pytest.raises(ConfigurationError, match="tells nothing here"):
        learn_to_see(fresh(), TensorDict({}, batch_size=[9]), unsaid(state, state), SeeingConfig(steps=1), seed=0)
