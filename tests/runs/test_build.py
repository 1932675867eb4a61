"""Working parts from names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.data.shapes import load
from fedctta.errors import UserError
from fedctta.runs.build import Builder, affordable_slots, public_images
from fedctta.runs.settings import Experiment


def test_slots_fill_the_data_up_to_the_papers_fifty():
    assert affordable_slots(12, batch=4) == 3
    assert affordable_slots(3, batch=4) == 1
    assert affordable_slots(10_000, batch=10) == 50


def test_public_images_are_clean_ones():
    images = public_images(Experiment(dataset="shapes-c"), 5, torch.device("cpu"))
    assert images.shape == (5, 3, 32, 32)
    assert (images[0].movedim(0, -1).mul(255).round().numpy() == load("test").images[0]).all()


def test_data_and_models_are_loaded_once(domains, tiny_module):
    builder = Builder({"dataset": domains, "model": tiny_module})
    experiment = Experiment(dataset="domains", model="sequential", stream="iid", clients=4, slots=3, batch=4)
    first, _, _ = builder.build(experiment, torch.device("cpu"))
    second, _, _ = builder.build(experiment, torch.device("cpu"))
    assert first.network is second.network


@pytest.mark.parametrize("dataset", ["shapes-c", "scenes"])
@pytest.mark.parametrize("keys", [{"size": 64}, {"layout": "folders"}])
def test_keys_for_folders_of_masks_are_refused_elsewhere(dataset, keys):
    with pytest.raises(UserError, match=f"no effect on {dataset}"):
        Builder({}).build(Experiment(dataset=dataset, **keys), torch.device("cpu"))


class Branching(nn.Sequential):
    """Decides by a value, which vmap cannot."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(192, 3))

    def forward(self, x):
        return super().forward(x if x.mean() > 0 else -x)


def test_a_model_that_vmap_cannot_run_is_looped_unless_vmap_is_asked_for(domains):
    builder = Builder({"dataset": domains, "model": Branching()})
    methods = {"adapter": "none", "aggregator": "local", "stream": "iid"}
    values = methods | {"dataset": "domains", "model": "branching", "clients": 4, "batch": 4}
    assert builder.build(Experiment(**values), torch.device("cpu"))[2]["lift"] == "loop"
    with pytest.raises(UserError, match=r"lift=vmap cannot run this model: .*; use lift=loop"):
        builder.build(Experiment(**values, lift="vmap"), torch.device("cpu"))
