"""Parts of the VLA policies: action tokens, statistics, pictures, prompts, the decoder."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, processors
from vla_golden import GOLDEN

from embodied.errors import CheckpointError, ConfigurationError
from policies.vla import statistics
from policies.vla.action_tokens import ActionTokenizer
from policies.vla.attention import AttentionPlan, bidirectional_plan, causal_plan
from policies.vla.images import ImageOptions, ImageProcessor, Normaliser, centre_crop, resize_lanczos3
from policies.vla.llama import KeyValueCache, LanguageModel, LlamaShape
from policies.vla.network import positions_of
from policies.vla.prompt import PromptEncoder, Template, small_tokenizer

# -- action tokens and statistics -----------------------------------------------------------------------------------


def test_action_ids_count_down_from_the_vocabulary_end():
    tokens = ActionTokenizer(vocab_end=32000)
    ids = tokens.encode(torch.tensor([-1.0, -0.999, 0.0, 0.999, 1.0, 7.0, -7.0]))
    assert ids.tolist() == [31999, 31999, 31872, 31745, 31744, 31744, 31999]


def test_every_id_decodes_to_a_centre_that_encodes_back_except_the_doubled_last_bin():
    tokens = ActionTokenizer(vocab_end=32000)
    ids = torch.arange(31744, 32000)
    again = tokens.encode(tokens.decode(ids))
    assert again[1:].tolist() == ids[1:].tolist()
    assert again[0] == 31745  # 256 ids, 255 bins
    assert tokens.decode(torch.tensor(31872)).item() == pytest.approx(0, abs=1e-12)  # standing still is a bin


def test_unnormalising_leaves_masked_dimensions_and_pins_constant_ones():
    entry = {"q01": [-2.0, 0.5, 0.0], "q99": [4.0, 0.5, 1.0], "mask": [True, True, False]}
    scale = statistics.QuantileScale(entry, statistics.RangeGuard.NONE)
    raw = scale.unnormalise(torch.tensor([[-1.0, 0.3, 0.9], [0.0, -1.0, 0.1]]))
    torch.testing.assert_close(raw, torch.tensor([[-2.0, 0.5, 0.9], [1.0, 0.5, 0.1]]))
    torch.testing.assert_close(scale.normalise(raw), torch.tensor([[-1.0, 0.0, 0.9], [0.0, 0.0, 0.1]]))


def test_range_guard_is_added_where_the_reference_adds_it():
    entry = {"q01": [0.0], "q99": [1e-8]}
    for guard, expected in ((statistics.RangeGuard.NONE, 1e-8), (statistics.RangeGuard.EPSILON, 2e-8)):
        scale = statistics.QuantileScale(entry, guard)
        assert scale.unnormalise(torch.ones(1)).item() == pytest.approx(expected, rel=1e-6)


def test_computed_statistics_are_the_quantiles_and_refuse_bad_data():
    actions = np.stack([np.linspace(0, 100, 101), np.full(101, 3.0)], axis=1)
    entry = statistics.compute(actions, trajectories=4, mask=[True, False])
    assert entry["action"]["q01"] == [1.0, 3.0]
    assert entry["action"]["q99"] == [99.0, 3.0]
    assert (entry["num_transitions"], entry["num_trajectories"]) == (101, 4)
    with pytest.raises(ConfigurationError, match="1 non-finite"):
        statistics.compute(np.array([[np.nan]]), trajectories=1)


def test_what_a_critic_sees_is_in_deviations_and_at_most_five_of_them():
    scale = statistics.StandardScale({"mean": [1.0, 0.0, 2.0], "std": [2.0, 0.5, 0.0]})
    seen = scale.normalise(torch.tensor([[5.0, 1.0, 2.0], [100.0, -100.0, 3.0]]))
    # a dimension that never changed counts as changing by a thousandth
    torch.testing.assert_close(seen, torch.tensor([[2.0, 2.0, 0.0], [5.0, -5.0, 5.0]]))


def test_statistics_key_must_exist_and_be_unambiguous():
    stored = {"libero_spatial": {}, "bridge": {}}
    assert statistics.select(stored, "bridge")[0] == "bridge"
    with pytest.raises(ConfigurationError, match="Did you mean 'libero_spatial'"):
        statistics.select(stored, "libero_spatia")
    with pytest.raises(ConfigurationError, match="must name one"):
        statistics.select(stored, None)


# -- pictures -------------------------------------------------------------------------------------------------------


def golden_image(name):
    with np.load(GOLDEN / "image" / "image_golden.npz") as file:
        return torch.from_numpy(file[name])


@pytest.mark.parametrize("name", ["noise256", "smooth256", "rect120x200"])
def test_resized_bytes_equal_the_reference(name):
    found = ImageProcessor(224, ImageOptions())(golden_image(name)[None, None])
    assert torch.equal(found[0, 0], golden_image(f"{name}_resized_u8"))


@pytest.mark.parametrize("strategy", ["letterbox", "resize-crop"])
def test_other_resize_strategies_equal_the_reference(strategy):
    found = ImageProcessor(224, ImageOptions(), strategy)(golden_image("rect120x200")[None, None])
    assert torch.equal(found[0, 0], golden_image(f"rect120x200_{strategy}_u8"))


def test_normalised_pixels_equal_the_reference_with_its_rounded_constants():
    settings = json.loads((GOLDEN / "image/processor_ckpt/preprocessor_config.json").read_text())
    normaliser = Normaliser.from_preprocessor(settings, ("dinov2", "siglip"))
    planes = normaliser(golden_image("noise256_resized_u8")[None, None])
    assert torch.equal(planes.flatten(1, 3)[0], golden_image("noise256_pixel_values"))


def test_unknown_strategy_and_wrong_pictures_are_refused():
    with pytest.raises(CheckpointError, match="resize-naive"):
        ImageProcessor(224, ImageOptions(), "resize-naif")
    with pytest.raises(ConfigurationError, match="uint8"):
        ImageProcessor(8, ImageOptions())(torch.zeros(1, 1, 8, 8, 3))


def test_lanczos_agrees_with_pillow_up_to_its_intermediate_rounding():
    picture = golden_image("smooth256")
    expected = np.array(Image.fromarray(picture.numpy()).resize((224, 224), Image.Resampling.LANCZOS)).astype(int)
    found = resize_lanczos3(picture[None], 224)[0].numpy().astype(int)
    assert np.abs(found - expected).max() <= 1


def test_centre_crop_samples_the_box_of_the_asked_area():
    ramp = torch.arange(0, 200, 2, dtype=torch.uint8)[None, None, :, None].expand(1, 100, 100, 3)
    cropped = centre_crop(ramp, 0.81)[0, 50, :, 0].tolist()
    # sides 0.9: the box runs from 0.05 to 0.95 of 99 intervals of 2 levels
    assert cropped[0] == int(0.05 * 99 * 2 / 255 * 255.5)
    assert cropped[-1] == int(0.95 * 99 * 2 / 255 * 255.5)
    assert torch.equal(
        centre_crop(torch.full((1, 8, 8, 3), 200, dtype=torch.uint8), 0.9).unique(),
        torch.tensor([200], dtype=torch.uint8),
    )


def test_hidden_pictures_are_black_in_the_asked_size():
    pictures = torch.full((2, 1, 8, 8, 3), 200, dtype=torch.uint8)
    shown = ImageProcessor(16, ImageOptions(hidden=True, jpeg_quality=95, crop_area=0.9))(pictures)
    assert shown.shape == (2, 1, 16, 16, 3)
    assert not shown.any()


def test_jpeg_step_changes_noise_and_keeps_flat_pictures():
    processor = ImageProcessor(64, ImageOptions(jpeg_quality=95))
    flat = torch.full((1, 1, 64, 64, 3), 128, dtype=torch.uint8)
    assert torch.equal(processor(flat), flat)
    noise = golden_image("noise256")[:64, :64][None, None]
    assert not torch.equal(processor(noise), noise)


# -- prompts --------------------------------------------------------------------------------------------------------


def reference_prompts():
    return json.loads((GOLDEN / "tokenizer/llama2_prompt_ids.json").read_text())


def llama_stand_in(record):
    """A tokenizer that knows the recorded pieces under their real ids and splits into as few as possible."""
    pieces = {
        token: i
        for p in record["prompts"]
        for kind in ("openvla", "openvla_v01", "rlinf")
        for token, i in zip(p[kind]["tokens"], p[kind]["ids"], strict=True)
    }
    known = {i: piece for piece, i in pieces.items()}
    vocabulary = [(known.get(i, f"<other {i}>"), -1.0 if i in known else -1000.0) for i in range(32000)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.Replace("\n", "<0x0A>")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def test_prompts_have_the_reference_ids_and_end_with_the_empty_token():
    record = reference_prompts()
    tokenizer = llama_stand_in(record)
    for template, kind in ((Template.OPENVLA, "openvla"), (Template.OPENVLA_V01, "openvla_v01")):
        encoder = PromptEncoder(tokenizer, template, pad_token=32000, length=80)
        for prompt in record["prompts"]:
            assert template.fill(prompt["instruction"]) == prompt[kind]["prompt"]
            assert encoder.ids(prompt["instruction"]) == [*prompt[kind]["ids"], 29871]


@pytest.mark.parametrize("template", Template)
def test_capitals_of_an_instruction_change_no_prompt(template):
    filled = template.fill("Push the RED cube")
    assert filled == template.fill("push the red cube")
    assert "to push the red cube?" in filled


def test_a_batch_is_padded_between_beginning_and_prompt():
    record = reference_prompts()
    encoder = PromptEncoder(small_tokenizer(), Template.OPENVLA, pad_token=1024, length=36)
    ids, mask = encoder([record["prompts"][0]["instruction"], "push the cube"])
    assert (ids[:, 0] == 1).all()
    assert mask[:, 0].all()
    assert torch.equal(ids == 1024, ~mask)
    assert (ids[:, -1] == encoder.tokenizer.token_to_id("▁")).all()
    assert ids[1][mask[1]].tolist() == encoder.ids("push the cube")


def test_a_prompt_that_does_not_fit_is_refused_with_the_length_that_would():
    encoder = PromptEncoder(small_tokenizer(), Template.OPENVLA, pad_token=1024, length=15)
    with pytest.raises(ConfigurationError, match="prompt_tokens to at least 18"):
        encoder(["push the cube"])


def test_small_tokenizer_keeps_every_text_and_robot_words_whole():
    tokenizer = small_tokenizer()
    for text in ("Pick up the cube", "schräg ☃ 12!", "a  b"):
        assert tokenizer.decode(tokenizer.encode(text).ids).strip() == text
    words = {word for suite in reference_prompts()["all_libero"].values() for text in suite for word in text.split()}
    assert all(len(tokenizer.encode(word.lower()).ids) == 2 for word in words)
    assert tokenizer.get_vocab_size() == 768


# -- decoder --------------------------------------------------------------------------------------------------------

SHAPE = LlamaShape(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=50,
)


@pytest.fixture
def language_model():
    torch.manual_seed(0)
    return LanguageModel(SHAPE).double().eval()


def inputs(batch=2, length=9):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, SHAPE.hidden_size, generator=generator, dtype=torch.float64)


def test_decoder_equals_transformers_in_float64(language_model):
    config = transformers.LlamaConfig(**dataclasses.asdict(SHAPE), attn_implementation="sdpa")
    reference = transformers.LlamaForCausalLM(config).double().eval()
    reference.load_state_dict(language_model.state_dict())
    for module in reference.modules():  # theirs computes the norm in float32 whatever the type
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = lambda x, m=module: torch.nn.functional.rms_norm(
                x, x.shape[-1:], m.weight, m.variance_epsilon
            )
    valid = torch.ones(2, 9, dtype=torch.bool)
    expected = reference(inputs_embeds=inputs(), attention_mask=valid.long()).logits
    found = language_model.lm_head(language_model.model(inputs(), positions_of(valid), causal_plan(valid)))
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    "plan", [causal_plan(None), bidirectional_plan(None), causal_plan(torch.ones(2, 9, dtype=torch.bool))]
)
@pytest.mark.parametrize("rows", [slice(-1, None), slice(2, 5)])
def test_asking_for_some_rows_gives_those_rows_of_all(language_model, plan, rows):
    positions = torch.arange(9)[None]
    everything = language_model.model(inputs(), positions, plan)
    some = language_model.model(inputs(), positions, plan, rows=rows)
    torch.testing.assert_close(some, everything[:, rows], atol=1e-12, rtol=0)


def test_cached_decoding_equals_one_pass(language_model):
    x, positions = inputs(), torch.arange(9)[None]
    whole = language_model.model(x, positions, causal_plan(None))
    cache = KeyValueCache(SHAPE.num_hidden_layers, capacity=9)
    pieces = [language_model.model(x[:, :6], positions[:, :6], causal_plan(None), cache)]
    for step in range(6, 9):
        one = slice(step, step + 1)
        pieces.append(language_model.model(x[:, one], positions[:, one], AttentionPlan(None, causal=False), cache))
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-12, rtol=0)


def test_recomputing_layers_changes_no_gradient(language_model):
    def gradients():
        language_model.zero_grad()
        language_model.model(inputs(), torch.arange(9)[None], causal_plan(None)).square().sum().backward()
        return [p.grad.clone() for p in language_model.model.layers.parameters()]

    kept = gradients()
    language_model.model.recompute = True
    for a, b in zip(kept, gradients(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_scoring_some_tokens_gives_those_logits_of_all(language_model):
    hidden = inputs()
    torch.testing.assert_close(language_model.lm_head(hidden, slice(40, 50)), language_model.lm_head(hidden)[..., 40:])
