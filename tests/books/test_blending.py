"""The statistics that a batch is normalised with."""

from __future__ import annotations

import torch

from fedctta.books.blending import Blend, normalise_with
from fedctta.books.rows import encode_statistics, read_scale
from fedctta.core.norms import Statistics, refreshed


def images(count=6):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_nothing_blended_is_the_source_model(tiny_network):
    scale = read_scale(tiny_network)
    nothing = Blend(torch.zeros(2 * len(scale.mean)), torch.zeros(()))
    output = tiny_network({}, images(), normalise_with(scale, nothing))
    torch.testing.assert_close(output.logits, tiny_network({}, images()).logits)


def test_the_batch_alone_is_the_batchs_statistics(tiny_network):
    scale = read_scale(tiny_network)
    alone = Blend(torch.zeros(2 * len(scale.mean)), torch.ones(()))
    output, expected = (tiny_network({}, images(), rule) for rule in (normalise_with(scale, alone), refreshed()))
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-4, rtol=1e-3)
    for name, tensor in expected.statistics.items():  # and they are kept
        torch.testing.assert_close(output.statistics[name], tensor, atol=1e-4, rtol=1e-3)


def test_a_domain_is_blended_with_the_source_as_two_halves_of_a_mixture(tiny_network):
    scale, a = read_scale(tiny_network), 0.25
    first, width = scale.names[0], scale.widths[0]
    mean, var = scale.mean + 0.5, scale.var * 2
    rule = normalise_with(scale, Blend(a * scale.encode(mean, var), torch.zeros(())))
    source = Statistics(scale.mean[:width], scale.var[:width])
    used, _ = rule(first, torch.zeros(2, width, 4, 4), source)
    torch.testing.assert_close(used.mean, source.mean + a * 0.5)
    torch.testing.assert_close(used.var, (1 - a) * source.var + a * 2 * source.var + a * (1 - a) * 0.25)


def test_what_was_measured_gives_the_domains_statistics_back(tiny_network):
    scale = read_scale(tiny_network)
    measured = encode_statistics(scale, tiny_network({}, images(), refreshed()).statistics)
    output = tiny_network({}, images(), normalise_with(scale, Blend(measured, torch.zeros(()))))
    torch.testing.assert_close(output.logits, tiny_network({}, images(), refreshed()).logits, atol=1e-4, rtol=1e-3)
