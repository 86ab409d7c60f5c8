"""OpenVLA-OFT against arrays computed by the reference implementations."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file
from tensordict import TensorDict
from vla_golden import GOLDEN, STATISTICS, arrays, assert_gradients, checkpoint_folder, facts, interface, planes

from policies import openvla_oft
from policies.api import Sampling

GREEDY = Sampling(decode="greedy")
VARIANTS = {
    "discrete": (1, {}),
    "l1": (2, {"head": "l1", "state": "token"}),
    "l1film": (2, {"head": "l1", "state": "token", "film": "language"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = checkpoint_folder(tmp_path_factory.mktemp("reference"))
    for path in (GOLDEN / "openvla_oft").glob("*.pt"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture
def build(folder):
    torch.set_num_threads(1)

    def build(cameras, **options):
        config = openvla_oft.OpenVLAOFTConfig(checkpoint=str(folder), statistics=STATISTICS, **options)
        return openvla_oft.build(config, interface(cameras))

    return build


def given_planes(policy, pixel_values):
    views = policy.interface.cameras
    policy.picture_planes = lambda inputs: planes(pixel_values[inputs["row"], : 6 * views])


def prompts(golden, rows):
    """The prompts of the recorded training rows, up to the empty token, padded in our layout."""
    ends = (golden["train_labels"] != -100).int().argmax(1)
    length = int(max(ends[row] for row in rows))
    ids = torch.full((len(rows), length), 32000)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        end = int(ends[row])
        ids[i, 0], mask[i, 0] = 1, True
        ids[i, length - end + 1 :] = golden["train_input_ids"][row, 1:end]
        mask[i, length - end + 1 :] = True
    fields = {"input_ids": ids, "prompt_mask": mask, "row": torch.tensor(rows)}
    fields["proprio"] = golden["proprio_normalized"][rows].float()
    return TensorDict(fields, batch_size=[len(rows)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_and_actions_of_unpadded_rows(build, variant):
    golden = arrays("openvla_oft/oft_float32")
    cameras, options = VARIANTS[variant]
    policy = build(cameras, **options)
    given_planes(policy, golden["pixel_values_2img"])
    for row in range(2):
        inputs = prompts(golden, [row])
        hidden = policy.hidden_states(inputs)[0, :-1]
        torch.testing.assert_close(hidden, golden[f"{variant}_actions_hidden_states"][row], atol=1e-4, rtol=0)
        logits = policy.model.action_logits(hidden)
        torch.testing.assert_close(logits, golden[f"{variant}_logits_tail"][row, :, :256], atol=1e-4, rtol=0)
        output = policy.act(inputs, GREEDY, noise=None)
        torch.testing.assert_close(output.actions[0].double(), golden[f"{variant}_actions"][row], atol=1e-4, rtol=0)
        if variant == "discrete":
            assert torch.equal(output.tokens[0].flatten(), golden["discrete_argmax_tokens"][row])


def test_padded_batch_equals_rows_alone(build):
    golden = arrays("openvla_oft/oft_float32")
    for cameras, options in VARIANTS.values():
        policy = build(cameras, **options)
        given_planes(policy, golden["pixel_values_2img"])
        together = policy.act(prompts(golden, [0, 1]), GREEDY, noise=None)
        for row in range(2):
            alone = policy.act(prompts(golden, [row]), GREEDY, noise=None)
            torch.testing.assert_close(together.actions[row], alone.actions[0], atol=1e-4, rtol=0)
            torch.testing.assert_close(together.value[row], alone.value[0], atol=1e-4, rtol=0)


def test_state_is_normalised_as_in_the_reference(build):
    golden = arrays("openvla_oft/oft_float32")
    policy = build(2, state="token")
    found = policy.state_scale.normalise(golden["proprio_raw"])
    torch.testing.assert_close(found.double(), golden["proprio_normalized"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("variant", ["discrete", "l1"])
def test_imitation_loss_and_its_gradients(build, variant):
    golden, record = arrays("openvla_oft/oft_float32"), facts("openvla_oft/oft_float32")["train"][f"train_{variant}"]
    cameras, options = VARIANTS[variant]
    policy = build(cameras, **options)
    given_planes(policy, golden["pixel_values_2img"])
    policy.action_scale.mask[:] = False  # the recorded actions are normalised already
    actions = golden["train_actions_normalized"]
    inputs = prompts(golden, [0, 1])
    loss = policy.imitation(inputs, actions).loss
    assert loss.item() == pytest.approx(record["loss"], abs=1e-4)
    loss.backward()
    assert_gradients(policy.model, record["grads"])
    if variant == "l1":
        assert_gradients(policy.action_head, record["grads_action_head"])
        assert_gradients(policy.state_projector, record["grads_proprio"])


def test_film_condition_leaves_padding_out_where_the_reference_averages_it_in(build):
    """The reference's training averages padding embeddings into the instruction of shorter rows, which its inference
    does not. The longest row of its batch has no padding: there its prediction is ours."""
    golden = arrays("openvla_oft/oft_float32")
    policy = build(2, **VARIANTS["l1film"][1])
    given_planes(policy, golden["pixel_values_2img"])
    inputs = prompts(golden, [0, 1])
    predicted = policy.action_head(policy._chunked(policy.hidden_states(inputs)))
    torch.testing.assert_close(predicted[0], golden["train_l1film_pred_actions"][0], atol=1e-4, rtol=0)
    gap = (predicted[1] - golden["train_l1film_pred_actions"][1]).abs().max()
    assert gap > 1e-3
    torch.testing.assert_close(predicted[1], golden["l1film_actions_normalized"][1], atol=1e-4, rtol=0)


RUNS = {
    "greedy_T1.0_k-1": GREEDY,
    "sample_T1.6_k-1": Sampling(temperature=1.6),
    "sample_T1.0_k5": Sampling(top_k=5),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("level", ["chunk", "action"])
@pytest.mark.parametrize("variant", ["rlinf", "official"])
def test_log_probabilities_entropies_and_values(build, variant, level, run):
    golden, record = arrays(f"openvla_oft/rlinf_oft_{variant}"), facts(f"openvla_oft/rlinf_oft_{variant}")
    official = variant == "official"
    options = {"state": "token", "stop": "append"} if official else {"stop": "omit"}
    policy = build(2, value=level, **options)
    weights = load_file(GOLDEN / f"openvla_oft/value_head_oft_{variant}_{level}_level.safetensors")
    policy.value_head.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    given_planes(policy, golden["pixel_values"])
    ids, mask = golden["input_ids"].clone(), golden["attention_mask"].clone()
    if official:  # beginning first, then padding: our layout
        ids[:, 0], mask[:, 0] = 1, True
        starts = golden["attention_mask"].int().argmax(1)
        for row, start in enumerate(starts):
            ids[row, start], mask[row, start] = 32000, False
    inputs = TensorDict({"input_ids": ids, "prompt_mask": mask, "row": torch.arange(3)}, batch_size=[3])
    if official:
        inputs["proprio"] = golden["proprio_normalized"].float()
    name = f"{level}_level_{run}"
    recorded = golden[f"{name}_action_tokens"].view(3, 8, 7)
    tokens = recorded + policy.tokens.first if official else recorded
    found = policy.evaluate(inputs, tokens, RUNS[run])
    torch.testing.assert_close(found.logprobs.flatten(1), golden[f"{name}_logprobs"], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.entropy.flatten(1), golden[f"{name}_entropy"], atol=1e-4, rtol=0)
    actions = policy.executed(policy.tokens.decode(tokens))
    torch.testing.assert_close(actions.double(), golden[f"{name}_actions"], atol=1e-6, rtol=1e-5)
    value = found.value
    if official:
        # wrong in the reference: it reads the value 57 positions before the end, of which padding takes some, so that
        # it comes from a placeholder that depends on the batch's padding; ours from the last prompt token
        gap = (~golden["attention_mask"]).sum(1)
        value = policy.value_head(policy.hidden_states(inputs)[torch.arange(3), 1 + gap])
        assert (value - found.value).abs().min() > 1e-3
    torch.testing.assert_close(value, golden[f"{name}_values"], atol=1e-4, rtol=0)
    grads = record["runs"][name].get("grads")
    if grads is not None:
        (0.01 * found.logprobs.sum() + value.sum()).backward()
        assert_gradients(
            policy, grads, lambda name: name.removeprefix("model.").replace("state_projector", "proprio_projector")
        )
