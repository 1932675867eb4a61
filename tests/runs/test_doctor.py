"""The doctor finds what was planted: wrong scalings, channels, outputs; and says which adapters work."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedctta.adapters import adapters
from fedctta.core.network import Network
from fedctta.data.domains import numbered
from fedctta.data.shapes import load as load_shapes
from fedctta.models.inputs import Normalise, to_input
from fedctta.models.zoo import load_model
from fedctta.runs import doctor
from fedctta.runs.datasets import load_data
from fedctta.runs.doctor import FITTED, IMAGENET, compare_cost, examine, fit_channels, misfit, try_adapters


@pytest.fixture(scope="module")
def trained():
    return load_model("resnet8-w16", "shapes-c")


@pytest.fixture(scope="module")
def clean():
    data = load_shapes("test")
    return to_input(data.images[:64]), torch.tensor(data.labels[:64])


def of(found, about):
    return next(finding for finding in found if finding.about == about)


def test_a_model_that_fits_is_told_so(trained, clean):
    found = examine(Network(trained), *clean)
    assert {finding.level for finding in found} == {"fine"}
    assert "3x32x32; the first layer takes 3 channels" in of(found, "input").text
    assert "BatchNorm2d" in of(found, "norm layers").text
    right = float((trained(clean[0]).argmax(1) == clean[1]).float().mean())
    assert of(found, "accuracy").text.startswith(f"{right:.1%} without adaptation, of 64 images")


class Unscaled(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x / 255)


@pytest.mark.parametrize(
    ("plant", "remedy"),
    [
        (lambda module: nn.Sequential(Normalise(*IMAGENET), module), "do not normalise with ImageNet"),
        (lambda module: nn.Sequential(Normalise((0.5,) * 3, (0.5,) * 3), module), "do not normalise with mean 0.5"),
        (Unscaled, "multiply by 255"),
    ],
)
def test_a_planted_wrong_scaling_is_found(plant, remedy, trained, clean):
    finding = of(examine(Network(plant(trained)), *clean), "normalisation")
    assert finding.level == "wrong"
    assert remedy in finding.text


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
        ((0.1307,) * 3, (0.3081,) * 3),
        ((0.7, 0.2, 0.5), (0.5,) * 3),
    ],
)
def test_a_planted_mean_and_deviation_of_any_kind_is_found(mean, std, trained, clean):
    found = examine(Network(nn.Sequential(Normalise(mean, std), trained)), *clean)
    assert of(found, "normalisation").level == "wrong"
    assert "expect" in of(found, "range").text


def test_what_channels_should_be_is_what_undoes_a_planted_mean_and_deviation(trained, clean):
    x = clean[0][:FITTED]
    right_mean, right_std, _ = fit_channels(Network(trained), x)
    mean, std, left = fit_channels(Network(nn.Sequential(Normalise((0.4,) * 3, (0.25,) * 3), trained)), x)
    assert left < 0.1
    assert torch.allclose(mean, right_mean * 0.25 + 0.4, atol=0.05)
    assert torch.allclose(std, right_std * 0.25, atol=0.03)


@pytest.mark.parametrize("domain", ["contrast", "fog"])
def test_a_shift_of_the_domain_is_told_as_such(domain, trained):
    data = load_data("shapes-c", 5, domain, None, "auto", None)
    finding = of(examine(Network(trained), to_input(np.asarray(data.images[domain][:64]))), "normalisation")
    assert finding.level == "note"
    assert "the images differ from those of training" in finding.text


def test_images_of_another_scale_are_found(trained, clean):
    images, labels = clean
    assert "divide by 255" in of(examine(Network(trained), 255 * images, labels), "normalisation").text
    assert of(examine(Network(trained), 255 * images, labels), "range").level == "wrong"


def test_misfit_is_the_divergence_by_hand():
    module = nn.Sequential(nn.Identity(), nn.BatchNorm1d(1), nn.Linear(1, 2))
    module[1].running_mean.fill_(1.0)
    module[1].running_var.fill_(4.0)
    x = torch.tensor([[2.0], [4.0]])  # mean 3, variance 1
    expected = ((3 - 1) ** 2 / 4 + 1 / 4 - 1 - torch.tensor(1 / 4).log()) / 2
    assert float(misfit(Network(module), x)) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("module", "about", "said"),
    [
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(3)),
            "input",
            "first layer takes 1 channels",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1)), "output", "as for regression"),
        (nn.Sequential(nn.Conv2d(3, 4, 3)), "output", "one logit per class"),
    ],
)
def test_what_does_not_fit_is_told(module, about, said, clean):
    if about == "input":
        module(torch.zeros(1, 1, 32, 32))
    finding = of(examine(Network(module), clean[0]), about)
    assert finding.level == "wrong"
    assert said in finding.text


def test_a_model_without_statistics_cannot_be_checked(clean):
    width = 3 * 32 * 32
    found = examine(Network(nn.Sequential(nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, 4))), clean[0])
    assert of(found, "normalisation").level == "note"
    assert of(found, "norm layers").text == "1 LayerNorm"


def test_adapters_are_tried(tiny_network):
    x = torch.rand(4, 3, 8, 8)
    fits = {fit.name: fit for fit in try_adapters(tiny_network, x, x)}
    assert fits.keys() == adapters.usual().keys()
    assert fits["none"].refusal == fits["bn"].refusal == ""
    assert fits["cotta"].cost > fits["none"].cost > 0
    assert "rotta.side" in fits["rotta"].refusal
    table = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    refusals = {fit.name: fit.refusal for fit in try_adapters(Network(table), torch.rand(4, 5), torch.rand(4, 5))}
    assert refusals["tent"] == ""
    assert "works on colour pictures [batch, 3, height, width] and a batch has images of 5" in refusals["roid"]
    assert list(fits)[-1] in {name for name, fit in fits.items() if fit.refusal}


def test_costs_are_compared_at_the_quickest(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(doctor, "perf_counter", lambda: now[0])

    def takes(*seconds):
        """What takes so long the first time, the second time and so on."""

        def work():
            calls.append(seconds[0])
            now[0] += seconds[calls.count(seconds[0]) % len(seconds)]

        return work

    assert compare_cost(takes(0.02, 0.03, 0.5), takes(0.005, 0.05, 0.01)) == pytest.approx(4)
    assert calls[:4] == [0.02, 0.005, 0.02, 0.005]


def test_what_run_would_refuse_is_wrong(tiny_network):
    x = torch.rand(6, 3, 8, 8)
    gives = tiny_network({}, x).logits.shape[1]
    for classes, level in ((("a", "b", "c", "d"), "wrong"), (("a", "b"), "wrong"), (numbered(2), "fine")):
        finding = of(examine(tiny_network, x, classes=classes), "output")
        assert finding.level == level
        said = f"{gives} outputs, and the classes of the data are {len(classes)}: choose"
        assert level == "fine" or finding.text.startswith(said)
    assert of(examine(tiny_network, x, classes=numbered(gives)), "output").level == "fine"


def test_what_is_not_finite_is_wrong(trained, clean):
    images, labels = clean
    infinite = images.clone()
    infinite[0, 0, 0, 0] = torch.inf
    assert of(examine(Network(trained), infinite, labels), "images").level == "wrong"
    broken = copy.deepcopy(trained)
    with torch.no_grad():
        next(broken.parameters()).fill_(torch.nan)
    found = examine(Network(broken), images, labels)
    assert (of(found, "output").level, of(found, "normalisation").level) == ("wrong", "wrong")
    assert "NaN" in of(found, "output").text
