"""The steps pictures go through before the processor's own resize, each by what it does and all in their order."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_vla import build
from vla_golden import arrays

from policies import openvla
from policies.vla.images import ImageOptions, ImageProcessor, centre_crop, resize_lanczos3


def noise():
    return arrays("image/image_golden")["noise256"]


def processed(picture, size, **options):
    return ImageProcessor(size, ImageOptions(**options))(picture[None, None])[0, 0]


def through_jpeg(picture, quality):
    """As libjpeg does it with colours at half resolution (2 is Pillow's number of 4:2:0)."""
    buffer = io.BytesIO()
    Image.fromarray(picture.numpy()).save(buffer, "JPEG", quality=quality, subsampling=2)
    return torch.from_numpy(np.array(Image.open(buffer)))


def test_a_picture_is_encoded_then_resized_then_cropped():
    """OpenVLA-OFT's LIBERO evaluation: JPEG at the camera's size, Lanczos to the network's, its centre back to that."""
    small = resize_lanczos3(through_jpeg(noise(), 95)[None], 224)
    expected = centre_crop(small, 0.9)[0]
    assert torch.equal(processed(noise(), 224, jpeg_quality=95, filter="lanczos3", crop_area=0.9), expected)


@pytest.mark.parametrize("quality", [50, 75, 95])
def test_jpeg_has_the_asked_quality(quality):
    assert torch.equal(processed(noise(), 256, jpeg_quality=quality), through_jpeg(noise(), quality))


def test_jpeg_halves_the_resolution_of_colours():
    """Red and blue columns in turn become purple ones that differ in brightness alone."""
    columns = torch.tensor([[255, 0, 0], [0, 0, 255]], dtype=torch.uint8).repeat(32, 1).expand(64, 64, 3)
    found = processed(columns.contiguous(), 64, jpeg_quality=95).int()
    redness = found[..., 0] - found[..., 2]
    assert redness.abs().max() < 60  # 255 and -255 before


def test_letterbox_margins_have_the_checkpoints_own_colour(tmp_path):
    openvla.save(build("openvla"), tmp_path)
    for name, entry in (
        ("preprocessor_config.json", {"tvf_letterbox_fill": [200, 10, 60]}),
        ("config.json", {"image_resize_strategy": "letterbox"}),
    ):
        settings = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps({**settings, **entry}))
    pictures = openvla.load(tmp_path).pictures(torch.zeros(1, 1, 40, 80, 3, dtype=torch.uint8))[0, 0]
    assert pictures[0].unique(dim=0).tolist() == [[200, 10, 60]]
    assert not pictures[len(pictures) // 2].any()


@pytest.mark.parametrize(("name", "levels"), [("noise256", 24), ("smooth256", 1)])
def test_resizing_in_bytes_is_as_near_to_rlinfs_in_floats_as_the_reference_is(name, levels):
    """RLinf resizes tensors; Pillow, as the published processor, rounds and clips between its two passes."""
    golden = arrays("image/image_golden")
    difference = processed(golden[name], 224).int() - golden[f"rlinf_{name}_resized_u8"].int()
    assert difference.abs().max() == levels
