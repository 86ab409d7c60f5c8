import colorsys

import pytest
import torch

from embodied.interaction.augmentation import AugmentationConfig, augment, change_colour, crop
from policies.vla.images import centre_crop

NOTHING = {"crop_area": 1.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


def pictures(count=3, size=12):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 2, size, size, 3), generator=generator, dtype=torch.uint8)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def test_colours_change_as_the_standard_library_says():
    planes = torch.rand(1, 3, 5, 5, generator=draws())
    changed = change_colour(
        planes, torch.tensor(1.3)[None, None, None, None], torch.tensor(0.21)[None, None, None, None]
    )
    for y in range(5):
        for x in range(5):
            h, s, v = colorsys.rgb_to_hsv(*planes[0, :, y, x].tolist())
            expected = colorsys.hsv_to_rgb((h + 0.21) % 1, min(1.0, s * 1.3), v)
            assert changed[0, :, y, x].tolist() == pytest.approx(expected, abs=1e-5)


def test_grey_has_no_hue_and_keeps_its_value():
    grey = torch.full((1, 3, 2, 2), 0.4)
    factor, turn = torch.full((2, 1, 1, 1, 1), 0.3)
    assert torch.allclose(change_colour(grey, factor, turn), grey)
    assert torch.equal(change_colour(torch.zeros(1, 3, 2, 2), factor, turn), torch.zeros(1, 3, 2, 2))


def test_a_crop_in_the_middle_is_the_one_that_acting_takes():
    images = pictures(1)[0]
    half = torch.full((2,), 0.5)
    cropped = crop(images.permute(0, 3, 1, 2).float() / 255, 0.9, half, half)
    expected = centre_crop(images, 0.9).permute(0, 3, 1, 2).float()
    assert (cropped * 255 - expected).abs().max() <= 1


def test_a_crop_at_the_corner_starts_with_the_corner_pixel():
    planes = torch.rand(1, 3, 9, 9, generator=draws())
    zero, one = torch.zeros(1), torch.ones(1)
    assert torch.allclose(crop(planes, 0.25, zero, zero)[0, :, 0, 0], planes[0, :, 0, 0])
    # half the side: 8 gaps of pixels become 4, so the last sample is the middle pixel
    assert torch.allclose(crop(planes, 0.25, zero, zero)[0, :, -1, -1], planes[0, :, 4, 4], atol=1e-6)
    assert torch.allclose(crop(planes, 0.25, one, zero)[0, :, 0, -1], planes[0, :, 0, -1], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ({"brightness": 0.2}, 100 - 52, 100 + 52),
        ({"contrast": 0.2}, 99, 101),
        ({"saturation": 1.0, "hue": 0.5}, 99, 101),
    ],
)
def test_a_plain_grey_picture_moves_only_with_brightness(options, low, high):
    grey = torch.full((64, 1, 4, 4, 3), 100, dtype=torch.uint8)
    changed = augment(grey, AugmentationConfig(**{**NOTHING, **options}), draws())
    assert changed.min() >= low
    assert changed.max() <= high
    if "brightness" in options:
        assert changed[:, 0, 0, 0, 0].unique().numel() > 30  # a draw of its own for each picture


def test_with_everything_off_nothing_changes():
    images = pictures()
    assert (augment(images, AugmentationConfig(**NOTHING), draws()).int() - images.int()).abs().max() <= 1


def test_the_same_draws_give_the_same_pictures_and_others_do_not():
    images, options = pictures(), AugmentationConfig()
    assert torch.equal(augment(images, options, draws(3)), augment(images, options, draws(3)))
    assert not torch.equal(augment(images, options, draws(3)), augment(images, options, draws(4)))
    assert augment(images, options, draws()).shape == images.shape
