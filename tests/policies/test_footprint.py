"""Policies by name: both spellings mean the same, and the numbers that ship are those that counting gives."""

import dataclasses
import json

import pytest

import policies
from embodied.commands.main import main
from embodied.commands.policies import spoken_bytes, spoken_count
from embodied.config import parse
from embodied.errors import ConfigurationError
from embodied.interaction.imitation_recipe import compose_sft
from policies import footprint, registry
from policies.api import Interface
from policies.measuring import measure
from policies.names import other_spelling, split_name
from policies.vla.bundle import PRESETS

INTERFACE = Interface(
    state_dim=5,
    action_dim=2,
    action_low=(-1.0,) * 2,
    action_high=(1.0,) * 2,
    cameras=1,
    image_height=64,
    image_width=64,
)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("openvla/7b", ("openvla", "7b")),
        ("openvla-7b", ("openvla", "7b")),
        ("openvla_oft/tiny", ("openvla_oft", "tiny")),
        ("openvla-oft-tiny", ("openvla_oft", "tiny")),
        ("mlp", ("mlp", "")),
    ],
)
def test_a_name_has_a_kind_and_a_preset_in_both_spellings(name, parts):
    assert split_name(name) == parts
    assert split_name(other_spelling(name)) == parts


def test_both_spellings_build_the_same_policy(tmp_path):
    first = policies.build("openvla_oft/tiny", INTERFACE, seed=3, chunk=2)
    second = policies.build("openvla-oft-tiny", INTERFACE, seed=3, chunk=2)
    weights = second.state_dict()
    assert all(bool((tensor == weights[name]).all()) for name, tensor in first.state_dict().items())
    policies.save(second, tmp_path)
    assert policies.load(tmp_path).kind == "openvla_oft"
    assert parse(registry.config_class("openvla-7b"), {"name": "openvla-7b"}, at="policy").preset == "7b"
    assert compose_sft("openvla-oft-tiny", ["data"], []).policy == compose_sft("openvla_oft/tiny", ["data"], []).policy


@pytest.mark.parametrize("name", ["openvla-8b", "openvla/8b", "openvla", "open-vla-7b"])
def test_unknown_names_are_refused_with_the_valid_ones(name):
    with pytest.raises(ConfigurationError, match="openvla"):
        policies.build(name, INTERFACE)
    with pytest.raises(ConfigurationError, match="openvla_oft/7b"):
        footprint.find(name)


@pytest.mark.parametrize(
    "name", ["mlp", "cnn", "openvla/tiny", pytest.param("openvla_oft/tiny", marks=pytest.mark.slow)]
)
def test_numbers_that_ship_are_what_counting_gives(name):
    (known,) = [needs for needs in footprint.shipped() if needs.name == name]
    assert measure(name) == known


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["openvla/7b", "openvla_oft/7b"])
def test_numbers_that_ship_for_7b_are_what_counting_gives(name):
    (known,) = [needs for needs in footprint.shipped() if needs.name == name]
    assert measure(other_spelling(name)) == known


def test_what_ships_is_plausible_and_complete():
    assert [needs.name for needs in footprint.shipped()] == list(footprint.NAMES)
    assert {split_name(name) for name in footprint.NAMES if "/" in name} == {
        (kind, preset) for kind in ("openvla", "openvla_oft") for preset in PRESETS
    }
    assert {name.split("/")[0] for name in footprint.NAMES} == set(registry.kinds()) - set(
        footprint.of_other_packages()
    )
    for needs in footprint.shipped():
        size = {"float32": 4, "bfloat16": 2}[needs.precision] * needs.parameters
        assert needs.act > size
        assert needs.full > 16 * needs.parameters * 0.9  # weights, gradients and two moments in float32
        assert needs.lora is None or size < needs.lora < needs.full


def test_the_command_lists_all_and_gives_json(capsys):
    assert main(["policies"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and other_spelling(name) in shown for name in footprint.NAMES)
    assert "q01/q99" in shown
    assert main(["policies", "openvla-oft-7b", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["name"] == "openvla_oft/7b"
    assert record.keys() == {field.name for field in dataclasses.fields(footprint.Footprint)}
    assert main(["policies", "openvla-9b"]) == 2
    assert "Valid policies" in capsys.readouterr().err


def test_numbers_are_spoken_short():
    assert [spoken_bytes(n) for n in (12_300, 11_040_000, 15_400_000_000)] == ["12.3 kB", "11 MB", "15.4 GB"]
    assert [spoken_count(n) for n in (1_400, 1_382_000, 7_541_237_184)] == ["1.4 k", "1.38 M", "7.54 G"]
