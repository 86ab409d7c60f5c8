"""RL4VLA's tasks without a simulator: what ids and seeds mean, how assets are read, and how a picture is finished."""

import json
import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

from embodied.errors import AssetError
from envs.maniskill.put_on_plate.things import SPLITS as PUT_ON_PLATE_SPLITS
from envs.maniskill.rl4vla import overlay
from envs.maniskill.rl4vla.collection import read_collection, read_picture
from envs.maniskill.rl4vla.draw import draw_episode
from envs.maniskill.rl4vla.places import Layout, places, starts, turns
from envs.maniskill.rl4vla.variants import OBJECTS, PHRASES, PLATES, SPLITS, TABLES, VARIANTS
from envs.maniskill.splits import SplitName, splits_of
from sim_assets.catalogue import RL4VLA_TASKS
from tests.envs.maniskill.rl4vla_stand_in import PLATE, write_assets

SEEDS = range(300)


MAIN = "PutOnPlateInScene25Main-v3"


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    return write_assets(tmp_path_factory.mktemp("rl4vla"))


def test_registry_variants_and_splits_name_the_same():
    assert {f"maniskill/{name}" for name in VARIANTS} == set(RL4VLA_TASKS)
    assert set(get_args(SplitName)) == {*PUT_ON_PLATE_SPLITS, *SPLITS}
    assert splits_of(MAIN) == ("in", "out", "both")
    assert splits_of("PickCube-v1") == ()


def test_places_turns_and_starts_are_as_many_as_published():
    assert [len(places(layout, "in")) for layout in Layout] == [784, 784, 2104, 2104, 2104]
    ring = places(Layout.RING, "out")
    assert len(np.unique(ring.reshape(-1, 2).round(6), axis=0)) == 28
    seen = places(Layout.RING, "in").reshape(-1, 2)
    assert np.abs(seen - [-0.16, 0.0]).max() <= 0.0751
    assert (np.abs(ring.reshape(-1, 2) - [-0.16, 0.0]).max(axis=1) > 0.1).all()
    assert (np.linalg.norm(ring[:, 0] - ring[:, 1], axis=1) > 0.07).all()
    assert len(starts(True, "out")) == 14_375
    assert len(starts(True, "both")) == 14_376
    assert (starts(True, "in") == 0).all()
    assert not set(turns(Layout.RING, "in")) & set(turns(Layout.RING, "out"))


@pytest.mark.parametrize("task", VARIANTS)
@pytest.mark.parametrize("split", SPLITS)
def test_a_task_shows_what_its_sets_say(task, split):
    variant = VARIANTS[task]
    drawn = [draw_episode(seed, variant, split) for seed in SEEDS]
    for name in ("thing", "plate", "table", "texture", "phrase"):
        sets = {"thing": variant.objects, "plate": variant.plates, "table": variant.tables}
        sets |= {"texture": variant.textures, "phrase": variant.phrases}
        assert {getattr(episode, name) for episode in drawn} == set(sets[name].of(split)), name
    for episode in drawn:
        first = {"": None, "object": episode.thing, "plate": episode.plate}[variant.second]
        assert (episode.second is None) is (not variant.second)
        assert episode.second is None or episode.second != first
    assert any(any(episode.start) for episode in drawn) is (variant.starts and split != "in")


def test_only_what_a_task_varies_is_held_out():
    held_out = {name: _held_out(variant) for name, variant in VARIANTS.items()}
    assert held_out[MAIN] == {"objects", "tables"}
    assert held_out["PutOnPlateInScene25Carrot-v1"] == {"objects"}
    assert held_out["PutOnPlateInScene25VisionWhole05-v1"] == {"textures"}
    assert held_out["PutOnPlateInScene25Instruct-v1"] == {"phrases"}
    assert held_out["PutOnPlateInScene25Single-v1"] == set()


def _held_out(variant) -> set[str]:
    names = ("objects", "plates", "tables", "phrases", "textures")
    return {name for name in names if not set(getattr(variant, name).of("in")) & set(getattr(variant, name).of("out"))}


def test_a_seed_shows_the_same_world_in_tasks_that_do_not_vary_it():
    for seed in SEEDS:
        main = draw_episode(seed, VARIANTS[MAIN], "in")
        for task in ("VisionTexture03-v1", "Instruct-v1", "EEPose-v1"):
            other = draw_episode(seed, VARIANTS[f"PutOnPlateInScene25{task}"], "out")
            assert (main.thing, main.plate, main.places, main.turn) == (
                other.thing,
                other.plate,
                other.places,
                other.turn,
            )


def test_the_collection_is_read_in_its_own_order(assets):
    collection = read_collection_of(assets)
    assert (len(collection.objects), len(collection.plates), len(collection.tables)) == (OBJECTS, PLATES, TABLES)
    assert collection.objects[3].words == "thing 3"
    assert collection.objects[3].visual.name == "textured.glb"
    np.testing.assert_allclose(np.subtract(collection.plates[0].high, collection.plates[0].low), PLATE)
    assert collection.instruction(0, 2, 0) == "put thing 2 on plate 0"
    texts = collection.instructions
    assert len(texts) == len(set(texts)) == OBJECTS * PLATES + (len(PHRASES) - 1) * OBJECTS


def read_collection_of(assets):
    return read_collection(Path(assets["EMBODIED_ASSET_RL4VLA_PUT_ON_PLATE"]))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "more_plate" / "model_db.json").unlink(), "model_db.json cannot be read"),
        (lambda folder: shutil.rmtree(folder / "more_carrot" / "007_thing"), "'007_thing' lacks collision.obj"),
        (lambda folder: (folder / "more_table" / "imgs" / "004.png").unlink(), "'004.png' lacks its picture"),
        (
            lambda folder: edit(folder / "more_plate", lambda db: db.popitem()),
            "lists 16 entries where the protocol has 17",
        ),
        (lambda folder: edit(folder / "more_carrot", lambda db: db["001_thing"].pop("bbox")), "no usable 'bbox'"),
    ],
)
def test_a_damaged_collection_is_refused_with_what_is_wrong(assets, tmp_path, damage, says):
    copy = tmp_path / "copy"
    shutil.copytree(assets["EMBODIED_ASSET_RL4VLA_PUT_ON_PLATE"], copy)
    damage(copy / "carrot")
    with pytest.raises(AssetError, match=f"(?s){says}.*embodied assets fetch rl4vla-put-on-plate"):
        read_collection(copy)


def edit(folder, change) -> None:
    listed = json.loads((folder / "model_db.json").read_text())
    change(listed)
    (folder / "model_db.json").write_text(json.dumps(listed))


def test_a_picture_is_interpolated_between_nearest_pixels(tmp_path):
    Image.fromarray(np.array([[[0] * 3, [100] * 3], [[200] * 3, [60] * 3]], dtype=np.uint8)).save(tmp_path / "a.png")
    picture = read_picture(tmp_path / "a.png", 4, 4)[..., 0]
    # a quarter and three quarters of the way between pixel centres, edges repeated
    assert picture[0].tolist() == [0, 25, 75, 100]
    assert picture[:, 0].tolist() == [0, 50, 150, 200]
    assert read_picture(tmp_path / "a.png", 2, 2)[..., 0].tolist() == [[0, 100], [200, 60]]


def plain(value: int, height: int = 6, width: int = 8) -> torch.Tensor:
    return torch.full((height, width, 3), value, dtype=torch.uint8)


def test_what_is_not_kept_shows_the_photograph():
    kept = torch.zeros(6, 8, dtype=torch.bool)
    kept[2:4, 3:6] = True
    out = overlay.behind(plain(50), kept, plain(200))
    assert out[kept].eq(50).all()
    assert out[~kept].eq(200).all()


def test_a_texture_on_things_is_fitted_to_their_box_and_leaves_the_rest():
    kept = torch.zeros(6, 8, dtype=torch.bool)
    kept[2, 3] = kept[3, 4] = True
    texture = torch.zeros(6, 8, 3)
    texture[:, 4:] = 200  # left half black, right half bright: the box's two columns
    out = overlay.on_things(plain(100), kept, texture, 0.5)
    assert out[2, 3, 0] == 50
    assert out[3, 4, 0] == 150
    assert out[~kept].eq(100).all()
    none = torch.zeros(6, 8, dtype=torch.bool)
    assert overlay.on_things(plain(100), none, texture, 0.5).eq(100).all()


def test_a_texture_on_everything_is_a_window_that_follows_what_is_kept():
    kept = torch.zeros(6, 8, dtype=torch.bool)
    kept[1:4, 5:8] = True  # its middle: row 2, column 6
    texture = torch.arange(12 * 16).reshape(12, 16, 1).expand(-1, -1, 3)
    out = overlay.on_everything(plain(0), kept, texture, 1.0)
    assert out[0, 0, 0] == 2 * 16 + 6
    assert out[5, 7, 0] == 7 * 16 + 13
    assert overlay.on_everything(plain(0), torch.zeros(6, 8, dtype=torch.bool), texture, 1.0)[0, 0, 0] == 16 + 1
