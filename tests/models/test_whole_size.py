"""Dense models of other libraries."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.models.whole_size import WholeSize


class Quarter(nn.Module):
    """Logits at a quarter of the size, in the wrapping of some library."""

    def __init__(self, wrap):
        super().__init__()
        self.head, self.wrap = nn.Conv2d(3, 2, 4, stride=4), wrap

    def forward(self, x):
        return self.wrap(self.head(x))


WRAPS = {
    "tensor": lambda logits: logits,
    "object": lambda logits: SimpleNamespace(logits=logits),
    "dictionary": lambda logits: {"out": logits},
    "tuple": lambda logits: (logits, "more"),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
def test_logits_come_at_the_size_of_the_input(wrap):
    model, x = Quarter(wrap), torch.rand(2, 3, 8, 12)
    expected = F.interpolate(model.head(x), size=(8, 12), mode="bilinear", align_corners=False)
    assert torch.equal(WholeSize(model)(x), expected)


def test_what_has_the_size_already_stays_as_it_is():
    model, x = nn.Conv2d(3, 2, 1), torch.rand(1, 3, 5, 7)
    torch.testing.assert_close(WholeSize(model)(x), model(x))


def test_a_segformer_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]}
    config = transformers.SegformerConfig(num_labels=5, decoder_hidden_size=8, **sizes)
    model = WholeSize(transformers.SegformerForSemanticSegmentation(config)).eval()
    assert model(torch.rand(1, 3, 48, 48)).shape == (1, 5, 48, 48)
