"""Random data that a model takes."""

from __future__ import annotations

import pytest
import torch

from fedctta.bench.shapes import Shape, build_model, input_shape, make_data
from fedctta.models.inputs import read_batch


@pytest.mark.parametrize(
    ("shape", "logits"),
    [
        (Shape("resnet8-w16"), (2, 10)),
        (Shape("vit-w48", 16), (2, 10)),
        (Shape("conv1d"), (2, 10)),
        (Shape("unet", 16), (2, 10, 16, 16)),
    ],
)
def test_a_model_takes_its_data(shape, logits):
    data = make_data(shape, 2)
    x = read_batch(data.images["noise"])
    assert x.shape[1:] == input_shape(shape)
    with torch.no_grad():
        assert build_model(shape)(x).shape == logits
    assert len(data.labels_of("noise")) == 2
    assert data.dense == shape.dense
