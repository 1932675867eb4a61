"""AugMix, each operation against Pillow's and the mixture by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from fedctta.core.randomness import keys
from fedctta.models import augmix
from fedctta.models.augmix import (
    DEPTH,
    IDENTITY,
    OPERATIONS,
    WIDTH,
    Plan,
    draw,
    draw_by_key,
    look_up,
    mix,
    mixture,
    steps,
    warp,
)


def pictures(n: int = 6, side: int = 32) -> torch.Tensor:
    """Random pictures [n, 3, side, side] of several ranges of values; the last ones are flat and almost flat."""
    rng = np.random.default_rng(0)
    lows, spans = rng.integers(0, 120, n), [2, 20, 60, 100, 130, 136][:n]
    images = [rng.integers(low, low + span, (3, side, side)) for low, span in zip(lows, spans, strict=True)]
    flat = np.full((3, side, side), 77)
    almost = flat.copy()
    almost[:, 0, 0] = (3, 200, 255)
    return torch.from_numpy(np.stack([*images, flat, almost]).astype(np.uint8))


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_step(name: str, strength: float, sign: int = 1, n: int = 1, side: int = 32) -> tuple[torch.Tensor, ...]:
    operation = torch.full((n,), OPERATIONS.index(name))
    return steps(operation, torch.full((n,), strength), torch.full((n,), sign), side, side)


def through_pillow(images: torch.Tensor, function) -> torch.Tensor:
    made = [np.asarray(function(Image.fromarray(image.movedim(0, -1).numpy()))) for image in images]
    return torch.from_numpy(np.stack(made)).movedim(-1, 1)


@pytest.mark.parametrize("side", [16, 32, 40])
@pytest.mark.parametrize(
    ("name", "strength", "function"),
    [
        ("autocontrast", 0.2, ImageOps.autocontrast),
        ("equalize", 0.2, ImageOps.equalize),
        ("posterize", 0.01, lambda image: ImageOps.posterize(image, 4)),
        ("posterize", 0.26, lambda image: ImageOps.posterize(image, 3)),
        ("solarize", 0.3, lambda image: ImageOps.solarize(image, 256 - 76)),
        ("solarize", 0.01, lambda image: ImageOps.solarize(image, 256 - 2)),
    ],
)
def test_tables_are_pillows(name, strength, function, side):
    images = pictures(side=side)
    operation, keep, threshold, matrix = one_step(name, strength, n=len(images), side=side)
    made = look_up(images.float(), operation, keep, threshold)
    assert torch.equal(made, through_pillow(images, function).float())
    assert torch.equal(warp(made, matrix), made)  # the other half of the step is the identity


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("name", "strength", "size"),
    [
        ("rotate", 0.29, 8),
        ("rotate", 0.02, 0),
        ("shear_x", 0.3, 0.09),
        ("shear_y", 0.05, 0.015),
        ("translate_x", 0.29, 3),
        ("translate_y", 0.1, 1),
    ],
)
def test_warps_are_pillows(name, strength, size, sign):
    size *= sign
    affine = {
        "shear_x": (1, size, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, size, 1, 0),
        "translate_x": (1, 0, size, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, size),
    }

    def by_pillow(image: Image.Image) -> Image.Image:
        if name == "rotate":
            return image.rotate(size, resample=Image.Resampling.BILINEAR)
        return image.transform(image.size, Image.Transform.AFFINE, affine[name], Image.Resampling.BILINEAR)

    images = pictures()
    operation, keep, threshold, matrix = one_step(name, strength, sign, n=len(images))
    assert torch.equal(look_up(images.float(), operation, keep, threshold), images.float())
    difference = (warp(images.float(), matrix) - through_pillow(images, by_pillow).float()).abs()
    assert difference.max() <= 1
    assert difference.mean() < 0.002


@pytest.mark.parametrize("side", [15, 32])
def test_translation_by_hand(side):
    images = pictures(side=side).float()
    *_, matrix = one_step("translate_x", 0.29, n=len(images), side=side)
    moved = math.trunc(side / 3 * 0.29)
    expected = torch.zeros_like(images)
    expected[..., : side - moved] = images[..., moved:]
    assert torch.equal(warp(images, matrix), expected)


@pytest.mark.parametrize(
    "plan", [draw(2000, 32, 32, gen()), draw_by_key(keys(0, 1)[0], 2000, 32, 32)], ids=["gen", "key"]
)
def test_plans_have_the_published_chances(plan):
    assert plan.operation.shape == (2000, WIDTH, DEPTH)
    idle = plan.operation == IDENTITY
    assert not idle[..., 0].any()
    assert (idle[..., 2] >= idle[..., 1]).all()
    shares = [idle[..., 1].float().mean(), idle[..., 2].float().mean()]
    assert shares == pytest.approx([1 / 3, 2 / 3], abs=0.03)
    drawn = plan.operation[..., 0].flatten().bincount(minlength=9) / (2000 * WIDTH)
    assert drawn.tolist() == pytest.approx([1 / 9] * 9, abs=0.02)
    assert (plan.weights >= 0).all()
    torch.testing.assert_close(plan.weights.sum(1), torch.ones(2000))
    # of Dirichlet(1, 1, 1) each weight has mean 1/3 and variance 1/18
    assert plan.weights.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.02)
    assert plan.weights.var(0).tolist() == pytest.approx([1 / 18] * 3, abs=0.01)
    assert 0 <= plan.share.min() < 0.01 < 0.99 < plan.share.max() <= 1
    assert set(plan.keep.unique().tolist()) == {0b11110000, 0b11100000, 255}
    assert plan.threshold.min() >= 256 - 76
    assert set(plan.warp[..., 0, 2][plan.operation == OPERATIONS.index("translate_x")].tolist()) == set(range(-3, 4))
    angles = plan.warp[..., 1, 0][plan.operation == OPERATIONS.index("rotate")].asin().rad2deg()
    assert (angles.min().item(), angles.max().item()) == pytest.approx((-8, 8), abs=1e-3)


def test_the_generator_decides():
    one, same, other = (draw(20, 32, 32, gen(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one.operation, other.operation)


def test_the_mixture_by_hand(monkeypatch):
    monkeypatch.setattr(
        augmix, "look_up", lambda images, operation, keep, threshold: images + keep[:, None, None, None]
    )
    monkeypatch.setattr(augmix, "warp", lambda images, matrix: images)
    plan = draw(1, 4, 4, gen())._replace(
        keep=torch.tensor([[[1, 0, 1], [10, 10, 10], [50, 0, 0]]]),
        weights=torch.tensor([[0.5, 0.2, 0.3]]),
        share=torch.tensor([0.25]),
    )
    images = torch.full((1, 3, 4, 4), 100, dtype=torch.uint8)
    expected = 100 + 0.25 * (0.5 * 2 + 0.2 * 30 + 0.3 * 50)
    torch.testing.assert_close(mix(images, plan), torch.full((1, 3, 4, 4), expected / 255))


def test_chains_that_do_nothing_leave_the_image():
    images = pictures(side=20)
    plan = draw(len(images), 20, 20, gen())
    nothing = steps(torch.full_like(plan.operation, IDENTITY), torch.ones(()), torch.ones(()), 20, 20)
    torch.testing.assert_close(mix(images, Plan(*nothing, plan.weights, plan.share)), images / 255)


def test_images_keep_their_range_and_do_not_touch_each_other():
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=gen())
    plan = draw(40, 32, 32, gen(1))
    mixed = mix(images, plan)
    assert mixed.dtype == torch.float32
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert 0 <= mixed.min() < mixed.max() <= 1
    changed = (mixed - images / 255).abs().amax((1, 2, 3)) > 1e-3
    assert changed.float().mean() > 0.9
    assert torch.equal(mix(images[7:9], plan.part(slice(7, 9))), mixed[7:9])


def test_mixtures_by_key_can_be_vmapped():
    images = torch.randint(0, 256, (3, 3, 12, 12), generator=gen())

    def two_views(image, key):
        return mixture(image.expand(2, 3, 12, 12), draw_by_key(key, 2, 12, 12))

    several = keys(0, 3)
    together = torch.func.vmap(two_views)(images, several)
    alone = [two_views(image, key) for image, key in zip(images, several, strict=True)]
    assert torch.equal(together, torch.stack(alone))
    assert not torch.equal(together[:, 0], together[:, 1])


@pytest.mark.gpu
def test_a_gpu_mixes_alike():
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=gen())
    plan = draw(64, 32, 32, gen(1))
    here, there = mix(images, plan), mix(images.cuda(), plan.to("cuda")).cpu()
    assert ((here - there).abs() < 1e-5).float().mean() > 0.99
