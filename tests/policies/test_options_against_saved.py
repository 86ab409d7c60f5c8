"""A policy that is to see or act otherwise than when it was saved says so."""

import logging

import pytest

import policies
from embodied.errors import ConfigurationError

SIZES = {"layers": 1, "vision_layers": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    image = {"crop_area": 0.9}
    policies.save(policies.build("openvla_oft/tiny", chunk=4, image=image, sizes=SIZES), folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"value": "chunk"}, []),  # a critic is added, what it sees and does stays
        ({"chunk": 2}, ["policy.chunk=4 (now 2)"]),
        ({"image": {"crop_area": 1.0, "hidden": True}}, ["crop_area=0.9 (now 1.0)", "hidden=False (now True)"]),
    ],
)
def test_what_differs_is_named(saved, caplog, changes, said):
    options = {"chunk": 4, "image": {"crop_area": 0.9}, **changes}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # as learner and rollout do; said once
            policies.build("openvla_oft/tiny", checkpoint=str(saved), **options)
    found = [record.message for record in caplog.records if "was made with" in record.message]
    assert len(found) == bool(said)
    assert all(words in found[0] for words in said)


def test_another_gripper_is_refused(saved):
    with pytest.raises(ConfigurationError, match=r"made with as_is.*Use policy\.gripper=as_is"):
        policies.build("openvla_oft/tiny", checkpoint=str(saved), chunk=4, gripper="open_is_negative")
