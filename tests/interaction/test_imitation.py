"""Fitting policies to demonstrations whose right answer is known: the action is a function of what is shown."""

import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
import yaml

from embodied.commands.main import main
from embodied.datasets import DatasetWriter, Episode, open_dataset
from embodied.datasets.lerobot_export import export_lerobot
from embodied.errors import AssetError, ConfigurationError
from embodied.interaction import imitation
from embodied.interaction.imitation import Fit, fit
from embodied.interaction.imitation_data import prepare, split_episodes, whole_pictures
from embodied.interaction.imitation_recipe import ScheduleConfig, compose_sft, load_sft_recipe, sft_recipes
from embodied.runs.checkpoint import CheckpointStore
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import read_metrics
from envs.api import ActionSpec, Bounds, CameraSpec, EnvSpec, Observation
from policies import registry
from policies.api import Interface, Sampling
from policies.vla.action_tokens import ActionTokenizer

SPEC = EnvSpec(
    id="test/Light",
    action=ActionSpec(Bounds.CONTINUOUS, dim=2, low=(-1.0, -1.0), high=(1.0, 1.0)),
    state_dim=2,
    cameras=(CameraSpec("front", 16, 16),),
    instructions=("follow the light",),
    episode_steps=8,
    control_hz=20.0,
)


def episode(number: int, steps: int = 8) -> Episode:
    """The picture's brightness is the first action, the first state the second."""
    generator = torch.Generator().manual_seed(number)
    shade = torch.randint(0, 5, (steps,), generator=generator)
    state = torch.rand(steps, 2, generator=generator) * 2 - 1
    labels = torch.stack([shade / 2 - 1, state[:, 0]], dim=1)
    return Episode(
        state=state,
        images=(shade * 50 + 20)[:, None, None, None, None].expand(-1, 1, 16, 16, 3).to(torch.uint8).contiguous(),
        actions=labels + 0.3,  # disturbed; not to be learnt
        labels=labels,
        rewards=torch.zeros(steps),
        success=torch.zeros(steps).bool(),
        instruction="follow the light",
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demonstrations") / "set"
    with DatasetWriter(folder, SPEC, 20.0, {"env": {"id": "gym/CartPole-v1"}}) as writer:
        for number in range(10):
            writer.add(number, episode(number, 8 if number else 3))
    return folder


MLP = ["policy.hidden=[32]", "policy.chunk=1", "validation.every=null", "machine.threads=1"]
TINY = ["augment=null", "policy.image.crop_area=1.0", "policy.chunk=2", "learner.global_batch=16"]


def run_fit(tmp_path, policy, data, overrides, name="run", **options):
    folders = [str(folder) for folder in (data if isinstance(data, list) else [data])]
    recipe = compose_sft(policy, folders, ["logger.tensorboard=false", *overrides])
    folder = RunFolder(tmp_path / name)
    folder.path.mkdir(exist_ok=True)
    return fit(recipe, folder, command="test", **options), folder


def observation(recorded: Episode) -> Observation:
    count = len(recorded)
    return Observation(
        state=recorded.state,
        instruction_ids=torch.zeros(count, dtype=torch.int64),
        instruction=[recorded.instruction] * count,
        images=recorded.images,
    )


# -- data -----------------------------------------------------------------------------------------------------------


def test_episodes_are_held_out_whole_and_the_same_for_one_seed():
    training, held_out = split_episodes(20, 0.1, seed=3)
    assert sorted(training + held_out) == list(range(20))
    assert len(held_out) == 2
    assert split_episodes(20, 0.1, seed=3) == (training, held_out)
    assert any(split_episodes(20, 0.1, seed=s)[1] != held_out for s in range(4, 8))
    assert split_episodes(5, 0.0, seed=0)[1] == []
    assert len(split_episodes(2, 0.9, seed=0)[0]) == 1


def test_chunks_of_labels_end_with_their_episode(data, tmp_path):
    dataset = open_dataset(data)
    policy = registry.build("mlp", registry.interface_of(SPEC), chunk=3)
    found = prepare(policy, dataset, [0, 1], tmp_path)
    assert len(found) == 3 + 8
    inputs, labels, valid = found.batch(torch.tensor([0, 2, 3]))
    first, second = dataset[0].labels, dataset[1].labels
    assert torch.equal(labels[0], first)
    assert torch.equal(labels[1], first[[2, 2, 2]])
    assert torch.equal(labels[2], second[:3])
    assert valid.tolist() == [[True, True, True], [True, False, False], [True, True, True]]
    assert torch.equal(inputs["state"], torch.stack([dataset[0].state[0], dataset[0].state[2], dataset[1].state[0]]))


def test_what_is_fitted_is_not_cropped_twice(data):
    policy = registry.build("openvla_oft/tiny", registry.interface_of(SPEC), image={"crop_area": 0.5})
    striped = torch.arange(16, dtype=torch.uint8)[:, None, None].expand(16, 16, 3) * 15
    shown = dataclasses.replace(observation(episode(1, 1)), images=striped[None, None].contiguous())
    with whole_pictures(policy):
        whole = policy.prepare(shown)["pixels"]
    cropped = policy.prepare(shown)["pixels"]
    assert whole.amax() > 220 > 200 > cropped.amax()


# -- learning -------------------------------------------------------------------------------------------------------


def test_the_schedule_rises_and_falls():
    schedule = ScheduleConfig(warmup_steps=4, decay="cosine")
    factors = [schedule.factor(step, 12) for step in range(12)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[8] == pytest.approx(0.5)
    assert factors[11] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert ScheduleConfig().factor(11, 12) == 1.0


def test_an_mlp_learns_the_labels_and_not_the_disturbed_actions(data, tmp_path):
    fitted, folder = run_fit(tmp_path, "mlp", data, [*MLP, "learner.epochs=300", "validation.metric=loss"])
    policy = registry.load(fitted.policy)
    recorded = episode(99)
    acted = policy.act(policy.prepare(observation(recorded)), Sampling(decode="greedy"), None).actions[:, 0]
    assert (acted[:, 1] - recorded.labels[:, 1]).abs().max() < 0.15  # a function of the state
    assert fitted.env == {"id": "gym/CartPole-v1"}
    assert json.loads(folder.result.read_text())["status"] == "done"
    assert not (folder.path / "prepared").exists()


def test_tiny_openvla_oft_learns_from_pictures_and_its_saved_policy_acts_alike(data, tmp_path):
    fitted, folder = run_fit(
        tmp_path, "openvla_oft/tiny", data, [*TINY, "learner.epochs=20", "schedule.warmup_steps=5", "labels.spread=0"]
    )
    metrics = [record["metrics"] for record in read_metrics(folder.metrics)]
    assert metrics[-1]["sft/loss"] < 0.5 * metrics[0]["sft/loss"]
    policy = registry.load(fitted.policy)
    recorded = episode(99)
    acted = policy.act(policy.prepare(observation(recorded)), Sampling(decode="greedy"), None).actions[:, 0]
    assert (acted[:, 0] - recorded.labels[:, 0]).abs().mean() < 0.15  # a function of the picture; chance is 0.6
    training, _ = split_episodes(10, 0.1, seed=0)
    labels = np.concatenate([episode(n, 8 if n else 3).labels.numpy() for n in training])
    entry = policy.bundle.statistics["test/Light"]
    assert entry["action"]["q99"] == pytest.approx(np.quantile(labels, 0.99, axis=0).tolist(), abs=1e-6)
    assert entry["num_transitions"] == len(labels)


def test_a_dimension_that_never_changes_is_kept_at_its_constant(tmp_path):
    with DatasetWriter(tmp_path / "set", SPEC, 20.0, {}) as writer:
        for number in range(3):
            recorded = episode(number)
            labels = torch.stack([recorded.labels[:, 0], torch.full((8,), 0.7)], dim=1)
            writer.add(number, dataclasses.replace(recorded, labels=labels))
    fitted, _ = run_fit(tmp_path, "openvla_oft/tiny", tmp_path / "set", [*TINY, "learner.epochs=1"])
    policy = registry.load(fitted.policy)
    acted = policy.act(policy.prepare(observation(episode(1))), Sampling(decode="greedy"), None).actions
    assert torch.allclose(acted[..., 1], torch.tensor(0.7), atol=1e-5)


@pytest.mark.parametrize("policy", ["openvla/tiny", "openvla_oft/tiny"])
def test_resuming_gives_the_same_bits_as_not_having_stopped(data, tmp_path, policy, monkeypatch):
    # crops, colours and shuffling included; dropout has its own seed a step
    overrides = [
        "policy.chunk=1",
        "learner.global_batch=16",
        "learner.epochs=3",
        "checkpoint.every=4",
        "checkpoint.keep=9",
    ]
    _, whole = run_fit(tmp_path, policy, data, overrides, "whole")
    advance, calls = Fit.advance, []

    def stopping(self):
        calls.append(1)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return advance(self)

    monkeypatch.setattr(imitation.Fit, "advance", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_fit(tmp_path, policy, data, overrides, "cut")
    assert json.loads((tmp_path / "cut/result.json").read_text())["status"] == "interrupted"
    monkeypatch.undo()
    recipe = load_sft_recipe(tmp_path / "cut")
    fit(recipe, RunFolder(tmp_path / "cut"), command="test", resume=True)
    straight = CheckpointStore(whole.checkpoints, keep=9).latest().state()
    resumed = CheckpointStore(tmp_path / "cut/checkpoints", keep=9).latest().state()
    assert straight["parameters"].keys() == resumed["parameters"].keys()
    assert all(torch.equal(tensor, resumed["parameters"][name]) for name, tensor in straight["parameters"].items())
    for index, entry in straight["learner"]["state"].items():
        assert all(torch.equal(tensor, resumed["learner"]["state"][index][name]) for name, tensor in entry.items())
    assert [r["metrics"] for r in read_metrics(whole.metrics)] == [
        r["metrics"] for r in read_metrics(tmp_path / "cut/metrics.jsonl")
    ]
    for name in ("model.safetensors", "dataset_statistics.json"):
        assert (whole.path / "policy" / name).read_bytes() == (tmp_path / "cut/policy" / name).read_bytes()


def test_micro_batches_give_the_step_of_the_whole_batch(data, tmp_path):
    states = []
    for name, micro in (("whole", "null"), ("pieces", "5")):
        overrides = [*MLP, "learner.epochs=2", "learner.global_batch=32", f"learner.micro_batch={micro}"]
        _, folder = run_fit(tmp_path, "mlp", data, [*overrides, "policy.chunk=3"], name)
        states.append(CheckpointStore(folder.checkpoints, keep=2).latest().state()["parameters"])
    assert all(torch.allclose(tensor, states[1][name], atol=1e-6) for name, tensor in states[0].items())


def test_micro_batches_of_chunks_cut_short_weigh_the_stop_token_alike():
    policy = registry.build("openvla/tiny", registry.interface_of(SPEC), chunk=2, sizes={"layers": 1}, seed=0)
    inputs, actions = policy.prepare(observation(episode(1, 4))), episode(1, 8).labels.view(4, 2, 2)
    valid = torch.tensor([[True, True], [True, False], [True, False], [True, True]])
    with torch.no_grad():
        whole = policy.imitation(inputs, actions, valid).loss
        parts = [policy.imitation(inputs[rows], actions[rows], valid[rows]).loss for rows in (slice(0, 1), slice(1, 4))]
    assert whole.item() == pytest.approx((2 * parts[0] + 4 * parts[1]).item() / 6, rel=1e-6)


def test_progress_counts_up_to_the_steps_that_there_are(data, tmp_path):
    _, folder = run_fit(tmp_path, "mlp", data, [*MLP, "learner.epochs=2", "data.episodes=3", "learner.global_batch=8"])
    last = [line for line in folder.log.read_text().splitlines() if " steps, " in line][-1]
    done, total = re.search(r"(\d+) of (\d+) steps", last).groups()
    assert done == total


def test_a_fit_does_not_go_on_with_other_data(data, tmp_path):
    copy = shutil.copytree(data, tmp_path / "set")
    _, folder = run_fit(tmp_path, "mlp", copy, [*MLP, "learner.epochs=1"])
    with DatasetWriter(copy, SPEC, 20.0, {"env": {"id": "gym/CartPole-v1"}}) as writer:
        writer.add(10, episode(10))
    with pytest.raises(ConfigurationError, match="not the dataset that this fit began with"):
        fit(load_sft_recipe(folder.path), folder, command="test", resume=True)


def test_a_fit_to_data_beside_one_goes_on_from_anywhere(data, tmp_path, monkeypatch):
    monkeypatch.chdir(data.parent)
    _, folder = run_fit(tmp_path, "mlp", data.name, [*MLP, "learner.epochs=1"])
    monkeypatch.chdir(tmp_path)
    recipe = load_sft_recipe(folder.path)
    assert recipe.data.folders == (str(data),)
    fit(recipe, folder, command="test", resume=True)


def test_episodes_that_should_have_no_steps_are_named(data, tmp_path):
    copy = shutil.copytree(data, tmp_path / "set")
    index = copy / "episodes.jsonl"
    index.write_text(re.sub(r'"steps": \d+', '"steps": 0', index.read_text()))
    with pytest.raises(AssetError, match="the index says 0"):
        run_fit(tmp_path, "mlp", copy, [*MLP, "learner.epochs=1"])


@pytest.mark.parametrize("policy", ["mlp", "openvla_oft/tiny"])
def test_a_dry_run_starts_nothing(data, tmp_path, policy, capsys, monkeypatch):
    monkeypatch.setattr(imitation, "fit", None)
    assert main(["sft", policy, str(data), "--dry-run"]) == 0
    (tmp_path / "sft.yaml").write_text(capsys.readouterr().out)
    assert main(["sft", "--resume", str(tmp_path), "--dry-run"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load((tmp_path / "sft.yaml").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["sft.yaml"]


def test_what_is_refused_before_a_first_step_leaves_no_folder(data, tmp_path, capsys):
    where = f"run.folder={tmp_path / 'run'}"
    assert main(["sft", "mlp", str(data), *MLP, "policy.chunk=2", "labels.spread=0", where, "machine.threads=0"]) == 2
    assert "threads is 0" in capsys.readouterr().err
    states = tmp_path / "states"
    with DatasetWriter(states, dataclasses.replace(SPEC, cameras=()), 20.0, {}) as writer:
        writer.add(0, dataclasses.replace(episode(0), images=None))
        writer.add(1, dataclasses.replace(episode(1), images=None))
    assert main(["sft", "openvla_oft/tiny", str(states), *TINY, "data.held_out=0.5", where]) == 2
    assert "camera" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_keeping_more_checkpoints_does_not_write_them_more_often():
    assert compose_sft("mlp", ["some/data"], ["checkpoint.keep=5"]).checkpoint.every == 200


def test_folders_and_overrides_may_stand_behind_options(data, tmp_path, capsys):
    assert main(["sft", "mlp", str(data), "--dry-run", str(tmp_path), "seed=7"]) == 0
    recipe = yaml.safe_load(capsys.readouterr().out)
    assert (recipe["data"]["folders"], recipe["seed"]) == ([str(data), str(tmp_path)], 7)
    assert main(["sft", "mlp", "--dry-run", str(data)]) == 0


def test_it_stops_when_held_out_episodes_get_no_better_and_exports_the_best(data, tmp_path):
    overrides = [*MLP, "learner.epochs=200", "learner.lr=0.5", "validation.patience=3", "validation.metric=loss"]
    fitted, folder = run_fit(tmp_path, "mlp", data, overrides)
    assert "3 validations in a row" in fitted.reason
    measured = {
        r["iteration"]: r["metrics"]["held_out/loss"]
        for r in read_metrics(folder.metrics)
        if "held_out/loss" in r["metrics"]
    }
    assert fitted.progress.best["step"] == min(measured, key=measured.get)
    assert fitted.progress.step == max(measured)
    assert len(measured) < 200


def test_a_lerobot_dataset_is_learnt_from_alike(data, tmp_path):
    export_lerobot(open_dataset(data), tmp_path / "lerobot")
    overrides = [*TINY, "learner.epochs=1", "seed=4"]
    _, ours = run_fit(tmp_path, "openvla_oft/tiny", data, overrides, "ours")
    _, theirs = run_fit(tmp_path, "openvla_oft/tiny", tmp_path / "lerobot", overrides, "theirs")
    assert (ours.path / "policy/model.safetensors").read_bytes() == (
        theirs.path / "policy/model.safetensors"
    ).read_bytes()


def test_two_recordings_are_learnt_from_as_one(data, tmp_path):
    more = tmp_path / "more"
    with DatasetWriter(more, SPEC, 20.0, {"env": {"id": "gym/CartPole-v1"}}) as writer:
        for number in range(4):
            writer.add(number, episode(20 + number, 6))
    overrides = [*MLP, "learner.epochs=1", "data.held_out=0", "validation.patience=null"]
    _, alone = run_fit(tmp_path, "mlp", data, overrides, "alone")
    _, joined = run_fit(tmp_path, "mlp", [data, more], overrides, "joined")

    def samples(folder):
        return CheckpointStore(folder.checkpoints, keep=1).latest().state()["samples"]

    assert samples(alone) == [3 + 9 * 8, 0]
    assert samples(joined) == [3 + 9 * 8 + 4 * 6, 0]


# -- recipes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["openvla/tiny", "openvla_oft/tiny", "openvla/7b", "openvla_oft/7b", "mlp", "cnn"])
def test_every_recipe_that_ships_composes_and_reads_back(policy, tmp_path):
    assert policy in sft_recipes()
    recipe = compose_sft(policy, ["some/data", "more"], ["seed=5"])
    assert (recipe.policy.name, recipe.seed, recipe.data.folders) == (policy, 5, ("some/data", "more"))
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(recipe.as_dict()))
    assert load_sft_recipe(tmp_path) == recipe


@pytest.mark.parametrize(
    ("policy", "overrides", "words"),
    [
        ("openvla_oft/tny", [], ["openvla_oft/tiny"]),
        ("openvla_oft/tiny", ["learner.lrr=1"], ["learner.lrr", "lr"]),
        ("openvla_oft/tiny", ["augment.crop=1"], ["augment.crop", "crop_area"]),
        ("openvla_oft/tiny", ["augment.crop_area=0.8"], ["0.8", "0.9", "set both alike"]),
        ("openvla_oft/tiny", ["augment=null"], ["set both alike"]),
        ("mlp", ["augment.hue=0.1"], ["augment=null"]),
        ("mlp", ["validation.metric=sucess"], ["accuracy"]),
        ("mlp", ["learner.target_kl=0.1"], ["target_kl"]),
        ("mlp", ["learner.warmup_steps=5"], ["schedule.warmup_steps"]),
        ("mlp", ["learner.decay_steps=5"], ["schedule.decay"]),
        ("mlp", ["learner.value_lr=1e-3"], ["value_lr"]),
        ("mlp", ["machine.device=cuda:99"], ["cuda:99"]),
        ("mlp", ["goal.at_least=1"], ["goal"]),
        ("mlp", ["data.held_out=1.0"], ["held_out"]),
        ("mlp", ["seed=-1"], ["seed"]),
        ("mlp", ["labels.spread=0.1"], ["labels.spread=0"]),
        ("mlp", ["data.folders=[other]"], ["leave the override out"]),
        ("openvla_oft/tiny", ["policy.head=l1"], ["labels.spread=0"]),
    ],
)
def test_bad_input_is_refused_with_the_reason(policy, overrides, words):
    with pytest.raises(ConfigurationError) as caught:
        compose_sft(policy, ["data"], overrides)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("few", ["data.held_out=0", "data.episodes=1"])
def test_waiting_for_a_better_policy_needs_held_out_episodes(data, tmp_path, few):
    with pytest.raises(ConfigurationError, match=r"nothing tells when to stop; set validation\.patience=null"):
        run_fit(tmp_path, "mlp", data, [*MLP, "validation.patience=2", few])


def test_more_episodes_than_there_are_are_refused(data, tmp_path):
    with pytest.raises(ConfigurationError, match=r"data\.episodes is 11, but .* has 10"):
        run_fit(tmp_path, "mlp", data, [*MLP, "data.episodes=11"])


# -- labels that know their neighbours -----------------------------------------------------------------------------


def test_spread_labels_are_a_normal_distribution_over_bins():
    tokens = ActionTokenizer(1024)
    actions = torch.tensor([0.0, 0.5, 1.0])
    weights = tokens.spread(actions, 0.1)
    assert weights.sum(-1).tolist() == pytest.approx([1, 1, 1])
    values = tokens.decode(torch.arange(768, 1024)).float()
    assert (weights[:2] * values).sum(-1).tolist() == pytest.approx([0.0, 0.5], abs=1e-4)
    assert (weights[0] * values.square()).sum().item() == pytest.approx(0.01, rel=1e-3)
    assert weights[2].argmax() == 1  # the largest action; id 0 only repeats its centre
    assert weights[:, 0].max() == 0


def test_a_narrow_spread_is_the_published_loss_and_a_wide_one_counts_neighbours():
    policy = registry.build("openvla_oft/tiny", registry.interface_of(SPEC), chunk=1, seed=0)
    inputs = policy.prepare(observation(episode(1)))
    centres = policy.tokens.decode(torch.tensor([[800, 900]])).float().expand(8, -1)[:, None]
    hard = policy.imitation(inputs, centres)
    assert policy.imitation(inputs, centres, spread=1e-4).loss.item() == pytest.approx(hard.loss.item(), rel=1e-5)
    hidden, targets = policy.supervised(inputs, policy.tokens.encode(centres))
    scores = policy.model.language_model.lm_head(hidden).log_softmax(-1)
    soft = policy.tokens.spread(centres[:, 0], 0.2)
    expected = -(soft * scores[:, :2, policy.tokens.rows]).sum(-1)
    stop = -scores[:, 2].gather(-1, targets[:, 2:])[:, 0]
    by_hand = (expected.sum() + stop.sum()) / 24
    assert policy.imitation(inputs, centres, spread=0.2).loss.item() == pytest.approx(by_hand.item(), rel=1e-5)


# -- the mlp's side -------------------------------------------------------------------------------------------------


def test_a_dimension_without_range_is_learnt_as_its_constant():
    interface = Interface(state_dim=2, action_dim=2, action_low=(-1.0, 3.0), action_high=(1.0, 3.0))
    policy = registry.build("mlp", interface, hidden=(4,))
    inputs = policy.prepare(observation(episode(0, 2)))
    found = policy.imitation(inputs, torch.tensor([[[0.5, 3.0]], [[-0.5, 3.0]]]))
    assert math.isfinite(found.loss.item())
    assert policy.act(inputs, Sampling(decode="greedy"), None).actions[..., 1].tolist() == [[3.0], [3.0]]


def test_the_mlps_imitation_is_masked_and_in_half_ranges():
    interface = Interface(state_dim=2, action_dim=1, action_low=(-2.0,), action_high=(6.0,))
    policy = registry.build("mlp", interface, hidden=(4,), chunk=2)
    torch.nn.init.zeros_(policy.actor[-1].weight)
    inputs = policy.prepare(observation(dataclasses.replace(episode(0, 2))))
    actions = torch.tensor([[[4.0], [100.0]], [[2.0], [0.0]]])  # middle 2, half range 4: gaps -0.5, masked, 0, 0.5
    found = policy.imitation(inputs, actions, torch.tensor([[True, False], [True, True]]))
    assert found.loss.item() == pytest.approx(0.5 * (0.25 + 0 + 0.25) / 3)
    assert found.distance.item() == pytest.approx((0.5 + 0 + 0.5) / 3)
    assert found.accuracy.item() == pytest.approx(1 / 3)
    assert found.loss.requires_grad


@pytest.mark.parametrize(("gripper", "opened"), [("open_is_positive", 1.0), ("open_is_negative", -1.0)])
def test_a_fit_reads_the_gripper_in_the_numbers_that_its_policy_has(data, gripper, opened):
    recipe = compose_sft("openvla_oft/tiny", [str(data)], [*TINY, f"policy.gripper={gripper}"])
    policy = imitation._build(recipe, open_dataset(data), list(range(8)))
    assert policy.statistics_key == SPEC.id
    taken = torch.tensor([[[0.5, opened], [0.5, -opened]]])
    wanted = policy.wanted(taken)
    assert wanted[0, :, 1].tolist() == [1.0, -1.0]  # open, closed, whatever the environment calls them
    assert policy.executed(wanted)[0, :, 1].tolist() == [opened, -opened]


def test_a_fit_that_is_refused_while_it_begins_leaves_no_folder(data, tmp_path, monkeypatch):
    def refuse(self):
        raise ConfigurationError("nothing to look at")

    monkeypatch.setattr(Fit, "advance", refuse)  # after the log of metrics was opened, as what learns to look
    with pytest.raises(ConfigurationError, match="nothing to look at"):
        run_fit(tmp_path, "mlp", data, [*MLP, "learner.epochs=1"])
    assert not (tmp_path / "run").exists()


def test_a_refused_resume_leaves_what_is_known_of_the_fit(data, tmp_path):
    copy = shutil.copytree(data, tmp_path / "set")
    _, folder = run_fit(tmp_path, "mlp", copy, [*MLP, "learner.epochs=1"])
    before = folder.result.read_text()
    assert folder.read_result()["status"] == "done"
    with DatasetWriter(copy, SPEC, 20.0, {"env": {"id": "gym/CartPole-v1"}}) as writer:
        writer.add(10, episode(10))
    with pytest.raises(ConfigurationError, match="not the dataset"):
        fit(load_sft_recipe(folder.path), folder, command="test", resume=True)
    assert folder.result.read_text() == before
