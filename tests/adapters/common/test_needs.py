"""A model lacks something: who needs it is refused, and told who can do without."""

from __future__ import annotations

import doctest
from dataclasses import dataclass
from typing import ClassVar, get_args

import pytest
from torch import nn

from fedctta.adapters import Adapter, adapters, usable
from fedctta.adapters.bbn import BalancedNorm
from fedctta.adapters.common import needs
from fedctta.adapters.common.needs import MET, Need, meets
from fedctta.core.network import Network
from fedctta.errors import UserError

LACKING = {
    "images": Network(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)), dense=True),
    "batchnorm": Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 2))),
    "affine": Network(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(144, 2))
    ),
    "features": Network(nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten())),
}
LACKING["gradients"] = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)))
LACKING["gradients"].differentiable = False
SAID = {
    "images": "works on whole images",
    "batchnorm": "needs BatchNorm layers",
    "affine": "trains scales of normalisation layers",
    "features": "needs a model that ends in nn.Linear",
    "gradients": "takes steps along gradients and this model gives its weights none",
}


def usual(name: str) -> Adapter:
    return adapters.create(name, {"rates": "0.1"} if name == "atp" else {})


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(needs) == (0, 3)


def test_every_need_can_be_lacked_alone():
    assert set(LACKING) == set(SAID) == set(MET) == set(get_args(Need))
    assert {name: [need for need in MET if not meets(network, [need])] for name, network in LACKING.items()} == {
        need: [need] for need in MET
    }


@pytest.mark.parametrize("need", MET)
@pytest.mark.parametrize("name", adapters.classes())
def test_an_adapter_is_refused_for_what_it_needs_and_for_nothing_else(name, need):
    network, adapter = LACKING[need], usual(name)
    if need not in adapter.needs:
        adapter.check(network, 4)
        assert name in usable(network)
        return
    assert name not in usable(network)
    with pytest.raises(UserError, match=f"adapter {name!r} {SAID[need]}") as refused:
        adapter.check(network, 4)
    told = str(refused.value)
    listed = told.rpartition("adapter ")[2].replace(" or ", ", ").split(", ")
    assert "\n" not in told
    assert listed == usable(network)
    assert listed[0] == "none"


def test_who_can_is_told_of_the_model_at_hand():
    """Without any normalisation layer those that train scales are no remedy."""
    with pytest.raises(UserError, match="needs BatchNorm") as refused:
        usual("bn").check(Network(nn.Linear(3, 3)), 8)
    told = str(refused.value)
    assert not {"tent", "sar", "roid"} & set(told.replace(",", " ").split())
    assert "grad" in told


def test_an_adapter_of_ones_own_says_what_it_needs(monkeypatch):
    @dataclass(frozen=True)
    class Mine(Adapter):
        name: ClassVar[str] = "mine"
        needs: ClassVar[tuple[Need, ...]] = ("batchnorm",)

    monkeypatch.setitem(adapters._classes, "mine", Mine)
    assert {need for need, network in LACKING.items() if "mine" not in usable(network)} == {"batchnorm"}
    with pytest.raises(UserError, match="adapter 'mine' needs BatchNorm layers"):
        Mine().check(LACKING["batchnorm"], 4)
    with pytest.raises(UserError, match=r"works on whole images .* mine, "):
        BalancedNorm().check(LACKING["images"], 4)


@pytest.mark.parametrize("name", adapters.classes())
def test_a_single_image_is_refused_where_one_is_too_few(name):
    """With BatchNorm, and the line names those that take one."""
    network, adapter = Network(LACKING["features"].module, dense=False), usual(name)
    if not meets(network, adapter.needs):
        network = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)))
    if adapter.single_images:
        adapter.check(network, 1)
        return
    with pytest.raises(UserError, match="batch=1 gives"):
        adapter.check(network, 1)
    assert name not in usable(network, single=True)


@pytest.mark.parametrize("name", ["tent", "fedicon"])
def test_those_that_take_a_single_image_are_named(name):
    network = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)))
    with pytest.raises(UserError, match="use batch=2 or more, or adapter none, ") as refused:
        usual(name).check(network, 1)
    listed = str(refused.value).rpartition("adapter ")[2].replace(" or ", ", ").split(", ")
    assert listed == usable(network, single=True)
    assert {"norm-alpha", "memo"} <= set(listed)
    assert not {"tent", "bn", "fedicon"} & set(listed)
