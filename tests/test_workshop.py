"""Working parts from names."""

from __future__ import annotations

import numpy as np
import torch

from fedctta.data.corrupted import Domains
from fedctta.data.shapes import load
from fedctta.settings import Experiment
from fedctta.workshop import Workshop, affordable_slots, public_images


def test_slots_fill_the_data_up_to_the_papers_fifty(domains):
    assert affordable_slots(domains, 4, Experiment(batch=4)) == 3
    assert affordable_slots(domains, 4, Experiment(batch=4, samples="overlap")) == 12
    big = Domains(domains.names, domains.images, np.zeros(10_000, np.int64), domains.classes, ())
    assert affordable_slots(big, 20, Experiment(batch=10)) == 50


def test_public_images_are_clean_ones():
    images = public_images(Experiment(dataset="shapes-c"), 5, torch.device("cpu"))
    assert images.shape == (5, 3, 32, 32)
    assert (images[0].movedim(0, -1).mul(255).round().numpy() == load("test").images[0]).all()


def test_data_and_models_are_loaded_once(domains, tiny_module):
    workshop = Workshop({"dataset": domains, "model": tiny_module})
    experiment = Experiment(dataset="domains", model="sequential", stream="iid", clients=4, slots=3, batch=4)
    first, _, _ = workshop.assemble(experiment, torch.device("cpu"))
    second, _, _ = workshop.assemble(experiment, torch.device("cpu"))
    assert first.network is second.network
