"""Every aggregator on a model that predicts every pixel."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Server, aggregators
from fedctta.aggregators.common.mixing import matrix
from fedctta.core.clients import by_vmap
from fedctta.core.network import Network
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError
from fedctta.models import build

CLIENTS, BATCH, SIDE, CLASSES = 3, 2, 8, 4
MORE = {
    "fedctta": [{"compare": "features"}, {"compare": "probabilities"}, {"probe": "images"}, {"probe": "batch"}],
    "fedtsa": [{"epochs": 3}],
    "ugsa": [{"uncertainty": measure} for measure in ("energy", "consistency", "dropout", "ensemble")],
    "fedamp": [{"variant": "code"}],
    "pfedgraph": [{"variant": "code"}],
}
FORMS = [(name, form) for name in aggregators.classes() for form in ({}, *MORE.get(name, ()))]


@pytest.mark.parametrize(
    ("name", "form"), FORMS, ids=[f"{n}-{'-'.join(f.values())}" if n != "fedtsa" else f"{n}-{len(f)}" for n, f in FORMS]
)
@pytest.mark.parametrize("adapter", ["bn", "tent", "grad"])
def test_an_aggregator_works_on_pixels_or_says_what_it_lacks(name, form, adapter):
    network = Network(build("unet", CLASSES, seed=1), dense=True)
    method, aggregator = adapters.create(adapter), aggregators.create(name, form)
    own = method.init(network).own
    if (name, adapter) in {("fedbn", "bn"), ("fedbn", "tent"), ("pfedbbn", "tent")}:
        with pytest.raises(UserError, match=f"aggregator '{name}'"):
            aggregator.check(network, own)
        return
    aggregator.check(network, own)
    x = torch.rand(2, CLIENTS, BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    server = Server(network, by_vmap, 0, (3, SIDE, SIDE), CLIENTS, lambda count: x[0, 0].repeat(8, 1, 1, 1)[:count])
    federation = Federation(method, aggregator, server)
    state, everyone, domain = federation.start(), torch.ones(CLIENTS, dtype=torch.bool), torch.tensor([0, 0, 1])
    with torch.no_grad():
        for t, batch in enumerate(x):
            state, outcome = federation.play(state, t, batch, everyone, domain)
    assert outcome.logits.shape == (CLIENTS, BATCH * SIDE * SIDE, CLASSES)
    assert outcome.logits.isfinite().all()
    if aggregator.communicates:
        torch.testing.assert_close(matrix(outcome.weights).sum(1), torch.ones(CLIENTS))
        assert outcome.bytes_up - outcome.bytes_down < 4 * CLIENTS * 64, "what is sent beside the model stays small"
