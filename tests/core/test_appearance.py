"""What a batch looks like, by hand, and that it tells corruptions apart."""

from __future__ import annotations

from math import log, sqrt

import pytest
import torch

from fedctta.core.appearance import ALONE, GREY, LAGS, NUMBERS, ROWS, SELDOM, STEADY, answer, appearance, of_batch


def images(count=6, side=16, seed=0):
    """Smooth colour images with one edge each."""
    generator = torch.Generator().manual_seed(seed)
    ramp = torch.linspace(0, 1, side)
    slope = torch.rand(count, 3, 2, generator=generator) * 0.5
    smooth = slope[..., :1, None] * ramp[:, None] + slope[..., 1:, None] * ramp
    return 0.1 + smooth * torch.where(ramp > 0.5, 1.2, 0.8)


def test_rows_answer_by_hand():
    sums, slopes, bends = answer(torch.tensor([1.0, 2.0, 4.0, 8.0]), 0)
    assert sums.tolist() == [7, 14]
    assert slopes.tolist() == [-3, -6]
    assert bends.tolist() == [1, 2]


def test_looks_by_their_definition():
    """Convolve with the nine products, pixel by pixel, and use them again on the table of logarithms."""
    x = images(2, 5).double()
    rows = torch.tensor(ROWS, dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True)
    kernels = torch.einsum("ui,vj->uvij", rows, rows).flatten(0, 1)
    light = torch.nn.functional.pad(x.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    answers = torch.nn.functional.conv2d(light, kernels[:, None])
    power = answers.square().mean((2, 3))
    power[:, 0] = answers[:, 0].var((1, 2), correction=0)
    expected = (power + GREY**2).log() @ kernels.flatten(1).T
    torch.testing.assert_close(appearance(x)[:, :9], expected)


def test_a_flat_image_has_no_power_at_any_frequency():
    looks = appearance(torch.full((1, 3, 8, 8), 0.5)).squeeze(0)
    grey = log(GREY**2)
    expected = torch.zeros(NUMBERS)
    expected[0], expected[9] = 3 * grey, grey  # the table is constant: (k_00)_uv = 1/3, nine times
    expected[10], expected[11] = 0.5, log(1 + SELDOM)
    torch.testing.assert_close(looks, expected, atol=1e-3, rtol=0)


def test_stripes_have_the_power_of_their_frequency():
    """Columns 0 1 0 1: k_02 answers (1 -2 1)/sqrt 6 times 3/sqrt 3, all others but k_00 nothing inside."""
    image = (torch.arange(64) % 2).float().expand(1, 1, 64, 64)
    table = appearance(image)[0, :9]
    rows = torch.tensor([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]])
    rows = rows / rows.norm(dim=1, keepdim=True)
    logs = (rows.T @ table.view(3, 3) @ rows).exp()  # undo the second use of the rows
    assert logs[0, 2].item() == pytest.approx((2 / sqrt(6) * sqrt(3)) ** 2, rel=0.05)  # edges
    assert logs[0, 0].item() == pytest.approx((0.5 / sqrt(3) * sqrt(3)) ** 2, rel=0.05)  # +-1/2 about its mean, times 1
    assert logs[1:].max().item() < 0.01


def test_how_light_and_how_flat_by_hand():
    """Of six pixels with one below them, two are as light as it, and one differs by a third of a grey level."""
    rows = torch.tensor([[0, 0, 90], [0, 30, 90], [60, 30, 94]])
    x = torch.stack([rows, rows, rows]) / 255
    x[2, 2, 1] += GREY
    looks = appearance(x[None])[0]
    assert looks[10].item() == pytest.approx((394 + 1 / 3) / 9 / 255)
    assert looks[11].item() == pytest.approx(log(3 / 6 + SELDOM), rel=1e-4)


def test_turning_colours_to_grey_changes_how_colours_change_only():
    x = images()
    colour, grey = appearance(x), appearance(x.mean(1, keepdim=True).expand_as(x))
    others = [n for n in range(NUMBERS) if n != 9]
    torch.testing.assert_close(colour[:, others], grey[:, others], atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(grey[:, 9], torch.full((len(x),), log(GREY**2)))
    assert (colour[:, 9] > grey[:, 9]).all()


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 1, 2, 5), (3, 4, 32, 16)])
def test_images_of_any_size_and_number_of_channels(shape):
    looks = appearance(torch.rand(shape, generator=torch.Generator().manual_seed(0)))
    assert looks.shape == (shape[0], NUMBERS)
    assert looks.isfinite().all()


def test_noise_and_blur_move_a_batch_far_beyond_its_own_error():
    x = images(10)
    mean, variance = of_batch(x)
    noisy = (x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    for changed in (noisy, torch.nn.functional.avg_pool2d(x, 5, 1, 2), x.clamp(0.2, 0.3)):
        other, _ = of_batch(changed)
        assert ((other - mean).square() / (variance / len(x) + 1e-4)).max() > 100
    half, _ = of_batch(x[:5])
    assert ((half - mean).square() / (variance / 5 + 1e-4)).mean() < 3


def test_a_batch_is_the_mean_and_variance_over_images():
    x = images(4)
    looks, (mean, variance) = appearance(x), of_batch(x)
    torch.testing.assert_close(mean, looks.mean(0))
    torch.testing.assert_close(variance, looks.var(0))
    assert of_batch(x[:1])[1].tolist() == [ALONE] * NUMBERS


def test_series_by_their_definition():
    x = torch.randn(2, 7, 40, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.tensor(ROWS, dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True)
    table = torch.zeros(2, 3, 3, dtype=torch.float64)
    for u, group in enumerate((slice(0, 3), slice(3, 5), slice(5, 7))):
        for v, lag in enumerate(LAGS):
            table[:, u, v] = (x[:, group, lag:] - x[:, group, :-lag]).square().mean((1, 2))
    found = appearance(x)
    expected = torch.einsum("au,bv,nuv->nab", rows, rows, (table + STEADY**2).log()).flatten(1)
    torch.testing.assert_close(found[:, :9], expected)
    torch.testing.assert_close(found[:, 9], (x.mean(2).square().mean(1) + STEADY**2).log())
    torch.testing.assert_close(found[:, 10], x.mean((1, 2)))


def test_how_often_series_rest_by_hand():
    x = torch.tensor([[0.0, 0.001, 0.5, 0.5, 0.6], [1.0, 2.0, 3.0, 3.0, 4.0], [5.0, 5.0, 6.0, 7.0, 8.0]])
    assert appearance(x[None])[0, 11].item() == pytest.approx(log(4 / 12 + SELDOM), rel=1e-4)


@pytest.mark.parametrize(("channels", "time"), [(1, 50), (2, 3), (4, 1)])
def test_short_series_with_few_channels_have_looks(channels, time):
    looks = appearance(torch.randn(3, channels, time, generator=torch.Generator().manual_seed(0)))
    assert looks.shape == (3, NUMBERS)
    assert looks.isfinite().all()
