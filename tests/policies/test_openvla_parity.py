"""OpenVLA against arrays computed by the reference implementations."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tensordict import TensorDict
from vla_golden import (
    GOLDEN,
    STATISTICS,
    arrays,
    assert_gradients,
    checkpoint_folder,
    facts,
    interface,
    planes,
)

from policies import openvla
from policies.api import Sampling
from policies.vla.attention import causal_plan
from policies.vla.network import positions_of, splice

GREEDY = Sampling(decode="greedy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint_folder(tmp_path_factory.mktemp("reference"))


@pytest.fixture
def policy(folder):
    torch.set_num_threads(1)
    config = openvla.OpenVLAConfig(checkpoint=str(folder), statistics=STATISTICS)
    policy = openvla.build(config, interface())
    policy.value_head.load_state_dict(
        {k: v.float() for k, v in load_file(GOLDEN / "openvla/value_head_openvla_chunk_level.safetensors").items()}
    )
    return policy


def given_planes(policy, pixel_values):
    """Let the policy see the reference's own pixels."""
    policy.picture_planes = lambda inputs: planes(pixel_values[inputs["row"]]).to(
        policy.model.projector.fc1.weight.dtype
    )


def prompt_inputs(ids, mask):
    return TensorDict({"input_ids": ids, "prompt_mask": mask, "row": torch.arange(len(ids))}, batch_size=[len(ids)])


def train_forward(policy, golden, rows=None):
    model = policy.model
    pictures = model.embed_pictures(planes(golden["pixel_values"]).to(model.projector.fc1.weight.dtype))
    mask = golden["train_attention_mask"]
    valid = splice(mask, mask.new_ones(pictures.shape[:2]))
    embeddings = splice(model.language_model.embed(golden["train_input_ids"]), pictures)
    return model.hidden(embeddings, positions_of(valid), causal_plan(valid), rows=rows), valid


def test_vision_features_and_projection(policy):
    golden = arrays("openvla/openvla_float32")
    backbone, pixels = policy.model.vision_backbone, planes(golden["pixel_values"])
    features = backbone(pixels)
    torch.testing.assert_close(features[..., :32], golden["dino_features"], atol=1e-4, rtol=0)
    torch.testing.assert_close(features[..., 32:], golden["siglip_features"], atol=1e-4, rtol=0)
    torch.testing.assert_close(policy.model.projector(features), golden["projector_features"], atol=1e-4, rtol=0)


def test_own_processor_gives_the_reference_pixels(policy):
    golden = arrays("openvla/openvla_float32")
    pictures = policy.pictures(golden["images_u8"][:, None])
    assert torch.equal(policy.normaliser(pictures), planes(golden["pixel_values"]))


def test_hidden_states_of_every_layer_and_logits(policy):
    golden = arrays("openvla/openvla_float32")
    seen = []
    decoder = policy.model.language_model.model
    for layer in decoder.layers:
        layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    hidden, valid = train_forward(policy, golden)
    for found, expected in zip([*seen, hidden], golden["train_hidden_states"], strict=True):
        torch.testing.assert_close(found[valid], expected[valid], atol=1e-4, rtol=0)
    logits = policy.model.language_model.lm_head(hidden)
    torch.testing.assert_close(logits[..., 31744:][valid], golden["train_logits_tail"][valid], atol=1e-4, rtol=0)
    torch.testing.assert_close(logits.logsumexp(-1)[valid], golden["train_logits_lse"][valid], atol=1e-4, rtol=0)
    assert torch.equal(logits.argmax(-1)[valid], golden["train_logits_argmax"][valid])


def test_token_loss_and_its_gradients(policy):
    golden, record = arrays("openvla/openvla_float32"), facts("openvla/openvla_float32")
    hidden, _ = train_forward(policy, golden)
    labels = splice(golden["train_labels"], torch.full((2, 16), -100))
    logits = policy.model.language_model.lm_head(hidden)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    assert loss.item() == pytest.approx(golden["train_loss"].item(), abs=1e-4)
    loss.backward()
    assert_gradients(policy.model, record["grads"])
    without = {name for name, p in policy.model.named_parameters() if not p.requires_grad}
    assert without == set(record["params_without_grad"])


def test_greedy_tokens_logits_and_actions(policy):
    golden = arrays("openvla/openvla_float32")
    given_planes(policy, golden["pixel_values"])
    # the prompt is the training row up to and including the empty token
    ends = (golden["train_labels"] != -100).int().argmax(1).tolist()
    length = max(ends)
    ids = torch.full((2, length), 32000)
    mask = torch.zeros(2, length, dtype=torch.bool)
    for row, end in enumerate(ends):
        ids[row, 0], mask[row, 0] = 1, True
        ids[row, length - end + 1 :] = golden["train_input_ids"][row, 1:end]
        mask[row, length - end + 1 :] = True
    inputs = prompt_inputs(ids, mask)
    output = policy.act(inputs, GREEDY, noise=None)
    assert torch.equal(output.tokens[:, 0], golden["gen_action_tokens"])
    torch.testing.assert_close(output.actions[:, 0].double(), golden[f"gen_actions_{STATISTICS}"], atol=1e-6, rtol=1e-6)
    normalised = policy.tokens.decode(output.tokens[:, 0])
    torch.testing.assert_close(normalised, golden["gen_actions_normalized"], atol=1e-12, rtol=0)
    # the reference decoded rows one by one without padding: ours are padded to one length, and equal it
    hidden = policy._teacher_forced(inputs, output.tokens)
    torch.testing.assert_close(
        policy.model.action_logits(hidden), golden["gen_step_logits_tail"][..., :256], atol=1e-4, rtol=0
    )


RUNS = {
    "chunk_level_greedy_T1.0_k-1": GREEDY,
    "chunk_level_sample_T1.6_k-1": Sampling(temperature=1.6),
    "chunk_level_sample_T1.0_k5": Sampling(top_k=5),
}


@pytest.mark.parametrize("run", RUNS)
def test_log_probabilities_entropies_and_values_of_padded_rows(policy, run):
    golden, sampling = arrays("openvla/rlinf_openvla"), RUNS[run]
    given_planes(policy, golden["pixel_values"])
    inputs = prompt_inputs(golden["input_ids"], golden["attention_mask"])
    found = policy.evaluate(inputs, golden[f"{run}_action_tokens"], sampling)
    torch.testing.assert_close(found.logprobs[:, 0], golden[f"{run}_logprobs"], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.entropy[:, 0], golden[f"{run}_entropy"], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.value, golden[f"{run}_values"], atol=1e-4, rtol=0)
    if run.startswith("chunk_level_greedy"):
        assert torch.equal(policy.act(inputs, sampling, noise=None).tokens, golden[f"{run}_action_tokens"])
    actions = policy.executed(policy.tokens.decode(golden[f"{run}_action_tokens"]))
    torch.testing.assert_close(actions.double(), golden[f"{run}_actions"], atol=1e-6, rtol=1e-6)
    grads = facts("openvla/rlinf_openvla")["runs"][run].get("grads")
    if grads is not None:
        (0.01 * found.logprobs.sum() + found.value.sum()).backward()
        assert_gradients(policy, grads, rename=lambda name: name.removeprefix("model."))


def test_padding_changes_nothing(policy):
    golden = arrays("openvla/rlinf_openvla")
    policy.double()
    given_planes(policy, golden["pixel_values"].double())
    inputs = prompt_inputs(golden["input_ids"], golden["attention_mask"])
    tokens = golden["chunk_level_sample_T1.6_k-1_action_tokens"]
    together = policy.evaluate(inputs, tokens, Sampling())
    decoded = policy.act(inputs, GREEDY, noise=None)
    for row in range(3):
        keep = golden["attention_mask"][row]
        alone = prompt_inputs(
            golden["input_ids"][row : row + 1, keep], torch.ones(1, int(keep.sum()), dtype=torch.bool)
        )
        alone["row"] = torch.tensor([row])
        single = policy.evaluate(alone, tokens[row : row + 1], Sampling())
        torch.testing.assert_close(together.logprobs[row], single.logprobs[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(together.value[row], single.value[0], atol=1e-5, rtol=1e-5)
        assert torch.equal(policy.act(alone, GREEDY, noise=None).tokens[0], decoded.tokens[row])


def test_float64_agrees_with_float32_reference_and_cache_with_full_pass(policy):
    golden = arrays("openvla/openvla_float32")
    policy.double()
    hidden, valid = train_forward(policy, golden)
    assert hidden.dtype == torch.float64
    expected = golden["train_hidden_states"][-1].double()
    torch.testing.assert_close(hidden[valid], expected[valid], atol=1e-4, rtol=0)
    rows, _ = train_forward(policy, golden, rows=slice(-5, None))
    torch.testing.assert_close(rows, hidden[:, -5:], atol=1e-12, rtol=1e-10)
