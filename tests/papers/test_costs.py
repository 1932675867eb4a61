"""What is missing is costed by what is most like it, and not at all where nothing is."""

from __future__ import annotations

import pytest

from fedctta.papers.costs import Cost, Costs
from fedctta.papers.pool import Kept
from fedctta.runs.settings import Experiment


def kept(seconds, device="cuda:0", **settings):
    usual = {"model": "resnet8", "adapter": "bn", "dataset": "cifar10-c", "aggregator": "fedavg", "stream": "niid"}
    return Kept({**usual, "slots": 50, "clients": 20, "batch": 10, "device": device, **settings}, seconds, "")


ASKED = Experiment(aggregator="fedavg", stream="niid")


@pytest.mark.parametrize(
    ("runs", "cost"),
    [
        ([kept(10.0)], Cost(10.0, "GPU")),
        ([kept(10.0), kept(30.0), kept(12.0)], Cost(12.0, "GPU")),  # the median
        ([kept(10.0), kept(90.0, aggregator="fedtsa")], Cost(10.0, "GPU")),  # the nearer one
        ([kept(90.0, aggregator="fedtsa")], Cost(90.0, "GPU")),
        ([kept(1.0, slots=5)], Cost(10.0, "GPU")),  # a tenth of the images
        ([kept(4.0, clients=10, batch=4)], Cost(20.0, "GPU")),
        ([kept(10.0, device="cpu")], Cost(10.0, "CPU")),
        ([kept(99.0, device="cpu"), kept(3.0, aggregator="fedtsa")], Cost(3.0, "GPU")),
        ([kept(10.0, stream="iid")], Cost(10.0, "GPU")),  # all else agrees
        ([kept(10.0, stream="arrivals", clients=10)], None),
        ([kept(10.0, adapter="cotta")], None),
        ([kept(10.0, model="resnext29")], None),
        ([], None),
    ],
)
def test_the_nearest_run_tells_the_cost(runs, cost):
    assert Costs(runs).estimate(ASKED) == (cost if cost is None else pytest.approx(cost))


def test_a_run_that_shows_all_images_of_a_public_set_is_not_scaled():
    settings = {"dataset": "vessels", "model": "unet", "adapter": "tent", "stream": "roam"}
    done = kept(30.0, "cpu", **settings, slots=2, clients=4, batch=2)
    asked = Experiment(dataset="vessels", adapter="tent", aggregator="fedavg", stream="roam", clients=4, batch=2)
    assert Costs([done]).estimate(asked) == Cost(30.0, "CPU")
