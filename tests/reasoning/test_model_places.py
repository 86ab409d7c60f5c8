"""Where a model is looked for, and what is said of one that is missing or damaged: at once, in one sentence."""

from __future__ import annotations

import shutil

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied.errors import AssetError
from reasoning.models import places
from reasoning.models.loading import check_model, load_model, load_tokenizer
from reasoning.models.places import locate
from tests.reasoning.small_runs import save_small_model


@pytest.fixture
def model(tmp_path):
    save_small_model(tmp_path / "model")
    return tmp_path / "model"


def load(folder):
    return load_model(str(folder), dtype=torch.float32, device="cpu")


@pytest.fixture
def no_hub(monkeypatch):
    """Asking the hub is a fault."""

    def ask(*_, **__):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(places.HfApi, "model_info", ask)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nope", "~/nope", "", "two words", "a/b/c"])
def test_what_can_only_be_a_folder_is_refused_without_asking_the_hub(name, no_hub):
    with pytest.raises(AssetError, match="there is no folder"):
        locate(name)


def test_a_file_and_a_folder_without_a_model_are_refused(tmp_path, no_hub):
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(AssetError, match="is a file"):
        locate(str(tmp_path / "model.safetensors"))
    with pytest.raises(AssetError, match=r"no config\.json"):
        locate(str(tmp_path))


class Asked:
    """Stands in for the hub."""

    def __init__(self, answer, monkeypatch):
        self.timeouts = []
        self.answer = answer
        monkeypatch.setattr(places, "HfApi", lambda: self)

    def model_info(self, name, timeout):
        self.timeouts.append(timeout)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_an_unreachable_hub_is_asked_once_and_briefly(monkeypatch):
    hub = Asked(ConnectionError("no route"), monkeypatch)
    with pytest.raises(AssetError, match="cannot be reached"):
        locate("someone/something")
    assert len(hub.timeouts) == 1
    assert hub.timeouts[0] <= 5


def test_a_hub_id_is_one_also_where_there_is_a_folder_of_its_owner(tmp_path, monkeypatch):
    (tmp_path / "someone").mkdir()
    monkeypatch.chdir(tmp_path)
    Asked("there", monkeypatch)
    place = locate("someone/something")
    assert (place.folder, place.local) == (None, False)


def test_without_a_network_the_hubs_cache_serves(monkeypatch):
    Asked(ConnectionError("no route"), monkeypatch)
    monkeypatch.setattr(places, "try_to_load_from_cache", lambda name, file: "/cache/config.json")
    assert locate("someone/something").local
    Asked("there", monkeypatch)
    assert not locate("someone/something").local


def test_a_name_that_the_hub_does_not_know_is_refused(monkeypatch):
    error = huggingface_hub.errors.RepositoryNotFoundError.__new__(huggingface_hub.errors.RepositoryNotFoundError)
    Asked(error, monkeypatch)
    with pytest.raises(AssetError, match="no model of that name"):
        locate("someone/something")


def test_a_hub_that_is_busy_is_left_to_whoever_fetches(monkeypatch):
    error = huggingface_hub.errors.HfHubHTTPError.__new__(huggingface_hub.errors.HfHubHTTPError)
    Asked(error, monkeypatch)
    assert not locate("someone/something").local


def test_damaged_weights_are_named_before_and_at_loading(model):
    assert check_model(str(model)).model_type == "llama"
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    for read in (check_model, load):
        with pytest.raises(AssetError, match="model"):
            read(str(model))
    weights.unlink()
    with pytest.raises(AssetError, match="has no weights"):
        check_model(str(model))


def test_missing_weights_are_not_drawn_at_random(model):
    weights = load_file(model / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AssetError, match=r"lacks 1 of its weights, e\.g\. model\.norm\.weight"):
        load(model)


def test_weights_that_are_not_finite_are_named(model):
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AssetError, match=r"model\.norm\.weight are not finite"):
        load(model)


def test_a_damaged_or_missing_tokenizer_is_refused(model, tmp_path):
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(AssetError, match="no model can be loaded"):
        load_tokenizer(str(model))
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(AssetError, match="has no tokenizer"):
        load_tokenizer(str(bare))
    (bare / "sentencepiece.bpe.model").write_text("")  # of other families; whether it is one is for transformers to say
    with pytest.raises(AssetError, match="no model can be loaded"):
        load_tokenizer(str(bare))
