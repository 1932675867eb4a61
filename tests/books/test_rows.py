"""One row of a book."""

from __future__ import annotations

import torch

from fedctta.books.rows import WEIGHTS, Layout, Scale, encode_statistics, layout_of, read_scale
from fedctta.core.appearance import NUMBERS
from fedctta.core.norms import refreshed


def test_sums_lie_side_by_side_and_come_back():
    layout = Layout(channels=3)
    row = layout.row(
        torch.zeros(1),
        images=torch.tensor([4.0]),
        look=torch.arange(float(NUMBERS)),
        doubt=torch.arange(3.0),
        moments=torch.arange(6.0),
    )
    assert row.shape == (layout.width,)
    assert layout.of(row, "images") == 4
    assert layout.of(row, "look").tolist() == list(range(NUMBERS))
    assert layout.of(row, "doubt").tolist() == list(range(len(WEIGHTS)))
    assert layout.of(row, "moments").tolist() == list(range(6))
    assert layout.of(row, "square").sum() == layout.of(row, "scored") == layout.of(row, "measured") == 0
    assert torch.equal(row[layout.short :], torch.arange(6.0))  # moments come last, but for what is learnt
    assert Layout(3, 5).width == layout.width + 5


def test_the_layout_of_a_models_rows(tiny_network):
    channels = sum(len(tiny_network.state[f"{name}.running_mean"]) for name in tiny_network.norms)
    assert layout_of(tiny_network) == Layout(channels)
    assert layout_of(tiny_network, Layout(channels, 7).width) == Layout(channels, 7)


def test_moments_are_measured_in_the_sources_deviations():
    scale = Scale(("one",), (2,), torch.tensor([1.0, 0.0]), torch.tensor([4.0, 1.0]) - 1e-5)
    z = scale.encode(torch.tensor([3.0, 0.0]), torch.tensor([4.0, 2.0]) - 1e-5)
    torch.testing.assert_close(z, torch.tensor([1.0, 0.0, 1.0, 1.0]))


def test_the_source_is_zero_and_layers_are_in_order(tiny_network):
    scale = read_scale(tiny_network)
    assert scale.names == tiny_network.norms
    assert encode_statistics(scale, tiny_network.statistics).abs().max() == 0
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    batch = tiny_network({}, x, refreshed()).statistics
    first = tiny_network.norms[0]
    expected = (batch[f"{first}.running_mean"] - tiny_network.state[f"{first}.running_mean"]) / scale.deviation[
        : scale.widths[0]
    ]
    torch.testing.assert_close(encode_statistics(scale, batch)[: scale.widths[0]], expected)
