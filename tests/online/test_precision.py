"""What a method keeps is as precise as its model, and what is too coarse for a method is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedctta
from fedctta.adapters import adapters
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.online.precision import check_precision, match_precision


def network(dtype):
    return Network(nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2)).to(dtype))


def test_a_refusal_names_what_works_on_this_very_model():
    with pytest.raises(UserError) as caught:
        check_precision(network(torch.float16), adapters.create("tent"))
    assert str(caught.value) == (
        "adapter 'tent' needs a model in float32 or float64 and this one is in float16: call .float() on it, or use"
        " adapter lame or none"
    )
    for dtype in (torch.float32, torch.float64):
        check_precision(network(dtype), adapters.create("tent"))
    check_precision(network(torch.bfloat16), adapters.create("none"))


class Mixed(nn.Module):
    """Convolution and classifier in float16, BatchNorm in float32."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3).half(), nn.BatchNorm2d(4), nn.Linear(4, 3).half()

    def forward(self, x):
        return self.last(self.norm(self.conv(x)).relu().mean((2, 3)))


ON_MIXED = "bbn bn bpa cola dua eata eta lame none norm-alpha norm-ema rdumb roid rotta sar tent"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [name for name in adapters.classes() if name != "atp"])
def test_what_adapts_norms_in_float32_alone_works_between_layers_in_16_bits(name):
    parameters = {"rotta": {"side": 8, "places": 4}, "eata": {"images": 8}, "fedthe": {"images": 8}}.get(name, {})
    images = torch.rand(8, 3, 8, 8) if parameters and name != "rotta" else None
    if name not in ON_MIXED.split():
        with pytest.raises(UserError, match="needs a model in float32 or float64"):
            fedctta.adapt(Mixed(), name, source_images=images, **parameters)
        return
    model = fedctta.adapt(Mixed(), name, source_images=images, **parameters)
    for _ in range(2):
        assert model(torch.rand(8, 3, 8, 8)).isfinite().all()
    assert model.health.skipped == 0


@pytest.mark.parametrize(
    ("of_model", "made", "kept"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float64, torch.float32, torch.float64),
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.int64, torch.int64),
        (torch.float16, torch.bool, torch.bool),
    ],
)
def test_nothing_that_is_kept_is_coarser_than_float32_or_the_model(of_model, made, kept):
    tensor = torch.ones(2).to(made)
    own, private = match_precision(network(of_model), Client({"a": tensor}, {"b": tensor}))
    assert own["a"].dtype == private["b"].dtype == kept
    assert (own["a"] is tensor) == (made == kept)
