"""Balanced batch normalisation: by hand, image by image, and what balance means."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters.common.balanced import (
    balanced,
    find_rates,
    image_statistics,
    move_statistics,
    over_classes,
    source_buffers,
)
from fedctta.core.norms import Statistics


def one_hot(labels, classes):
    return torch.nn.functional.one_hot(torch.tensor(labels), classes).double()


def move(classes, images, labels, eta, gamma=0.0):
    return move_statistics(classes, images, find_rates(labels, eta), gamma)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def image_by_image(classes, x, labels, eta, gamma):
    """The update as it is written, one image at a time."""
    mean, var = classes.mean.clone(), classes.var.clone()
    present = sorted(set(labels))
    deltas, gaps, rates = [], [], []
    for k in present:
        mine = [image.flatten(1) for image, y in zip(x, labels, strict=True) if y == k]
        m = 1 / len(mine) if len(mine) > 1 / eta else eta
        delta = m * sum((f - classes.mean[k][:, None]).mean(1) for f in mine)
        q = sum((f - classes.mean[k][:, None]).square().mean(1) for f in mine)
        mean[k] += (1 - gamma) * delta
        var[k] += (1 - gamma) * (m * (q - len(mine) * classes.var[k]) - delta.square())
        deltas.append(delta)
        gaps.append(m * q - delta.square())
        rates.append(m * len(mine))
    mean += gamma * torch.stack(deltas).mean(0)
    var += gamma * (torch.stack(gaps).mean(0) - sum(rates) / len(rates) * var)
    return Statistics(mean, var)


def test_by_hand():
    """One channel, two positions. Class 0 starts at mean 1, variance 1, and meets (2, 4); class 1 meets nothing."""
    classes = Statistics(column(1, 0), column(1, 2))
    images = image_statistics(torch.tensor([[[2.0, 4.0]]], dtype=torch.float64))
    assert [part.item() for part in images] == [3, 1]
    after = move(classes, images, one_hot([0], 2), eta=0.1)
    # delta = 0.1 * (3 - 1) = 0.2; q = mean(1, 9) = 5; s = 1 + 0.1 (5 - 1) - 0.04 = 1.36
    torch.testing.assert_close(after, Statistics(column(1.2, 0), column(1.36, 2)))
    now = over_classes(after)
    torch.testing.assert_close(now.mean, column(0.6)[0])
    torch.testing.assert_close(now.var, column((1.36 + 2) / 2 + 0.36)[0])  # means 0.6 to either side
    torch.testing.assert_close(over_classes(after, correction=1).var, column((1.36 + 2) / 2 + 0.72)[0])


def test_a_share_goes_to_all_classes():
    """As above with gamma = 0.5: half of delta = 0.2 goes to class 0, half to both."""
    classes = Statistics(column(1, 0), column(1, 2))
    images = image_statistics(torch.tensor([[[2.0, 4.0]]], dtype=torch.float64))
    after = move(classes, images, one_hot([0], 2), eta=0.1, gamma=0.5)
    torch.testing.assert_close(after.mean, column(1.2, 0.1))
    # Class 0 first gets half of 0.36; then all get 0.5 (0.1 * 5 - 0.04 - 0.1 s).
    torch.testing.assert_close(after.var, column(1.18 + 0.5 * (0.46 - 0.118), 2 + 0.5 * (0.46 - 0.2)))


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(5, 3, 4), (5,)])
@pytest.mark.parametrize("eta", [0.05, 0.4])  # 0.4: classes with 3 images and more are capped
def test_it_is_the_update_image_by_image(eta, shape, gamma):
    generator = torch.Generator().manual_seed(0)
    x = 3 + 2 * torch.randn(9, *shape, generator=generator, dtype=torch.float64)
    labels = [0, 2, 2, 5, 2, 0, 2, 2, 5]
    mean = 3 + torch.randn(6, 5, generator=generator, dtype=torch.float64)
    classes = Statistics(mean, 1 + torch.rand(6, 5, generator=generator, dtype=torch.float64))
    after = move(classes, image_statistics(x), one_hot(labels, 6), eta, gamma)
    torch.testing.assert_close(after, image_by_image(classes, x.view(9, 5, -1), labels, eta, gamma))


def test_a_class_that_fills_the_batch_is_replaced_at_most():
    """With more than 1 / eta images of a class, its statistics become theirs, and no more."""
    x = torch.randn(50, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    classes = Statistics(torch.full((3, 2), 9.0, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64))
    after = move(classes, image_statistics(x), one_hot([1] * 50, 3), eta=0.1)
    torch.testing.assert_close(after.mean[1], x.mean((0, 2)))
    torch.testing.assert_close(after.var[1], x.var((0, 2), correction=0))
    torch.testing.assert_close(after.mean[[0, 2]], classes.mean[[0, 2]])


def test_frequent_classes_weigh_no_more_than_rare_ones():
    """Two classes around 0 and 10, one nineteen times as frequent: in the end the mean is 5 all the same."""
    generator = torch.Generator().manual_seed(0)
    classes = Statistics(torch.zeros(2, 1), torch.ones(2, 1))
    labels = [0] * 19 + [1]
    for _ in range(400):
        x = torch.tensor(labels).float()[:, None, None] * 10 + torch.randn(20, 1, 8, generator=generator)
        classes = move(classes, image_statistics(x), one_hot(labels, 2).float(), eta=0.05)
    now = over_classes(classes)
    assert abs(now.mean.item() - 5) < 0.2
    assert abs(now.var.item() - 26) < 1  # 25 between classes, 1 within


def test_far_from_zero_digits_survive():
    """A mean of 1000 with deviations of 0.1, in single precision: variances stay right."""
    x = 1000 + 0.1 * torch.randn(8, 3, 64, generator=torch.Generator().manual_seed(0))
    classes = Statistics(torch.full((2, 3), 1000.0), torch.full((2, 3), 0.01))
    labels = one_hot([0, 1] * 4, 2)
    after = move(classes, image_statistics(x), labels.float(), eta=0.2)
    exact = move(Statistics(*(t.double() for t in classes)), image_statistics(x.double()), labels, eta=0.2)
    torch.testing.assert_close(after.var.double(), exact.var, atol=1e-5, rtol=0)
    constant = move(
        Statistics(classes.mean, torch.zeros(2, 3)), image_statistics(torch.full_like(x, 1000.0)), labels.float(), 0.2
    )
    assert (constant.var >= 0).all()


def test_the_rule_normalises_with_keeps_and_collects_what_is_new(tiny_network):
    generator = torch.Generator().manual_seed(0)
    buffers, after = source_buffers(tiny_network, 3), {}
    assert buffers.keys() == {"balanced.1.mean", "balanced.1.var"}
    torch.testing.assert_close(buffers["balanced.1.mean"][2], tiny_network.state["1.running_mean"])
    x = torch.rand(5, 3, 8, 8, generator=generator)
    labels = one_hot([0, 1, 1, 2, 1], 3).float()
    seen = {}

    def spy(name, features, old):
        seen[name] = features
        return balanced(buffers, after, labels, 0.05)(name, features, old)

    output = tiny_network({}, x, spy)
    old = Statistics(buffers["balanced.1.mean"], buffers["balanced.1.var"])
    expected = move(old, image_statistics(seen["1"]), labels, 0.05)
    torch.testing.assert_close(Statistics(after["balanced.1.mean"], after["balanced.1.var"]), expected)
    kept = over_classes(expected)
    torch.testing.assert_close(output.statistics, {"1.running_mean": kept.mean, "1.running_var": kept.var})
    torch.testing.assert_close(tiny_network(output.statistics, x).logits, output.logits)


def test_equal_classes_are_the_source(tiny_network):
    """Before any batch, statistics over classes are the source's."""
    buffers = source_buffers(tiny_network, 4)
    now = over_classes(Statistics(buffers["balanced.1.mean"], buffers["balanced.1.var"]))
    torch.testing.assert_close(now.mean, tiny_network.state["1.running_mean"])
    torch.testing.assert_close(now.var, tiny_network.state["1.running_var"])
