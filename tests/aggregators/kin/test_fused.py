"""Fused kernels give what the plain path does, with absent clients, late uploads and impossible numbers."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.mixing import mix, restrict
from fedctta.aggregators.kin import Kin, plain
from fedctta.core.appearance import NUMBERS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RATES = {"hazard": 0.1, "tolerance": 0.01, "strange": 7.0, "horizon": 20.0}


def make_server(clients, layers):
    generator = torch.Generator().manual_seed(clients)
    state = {}
    for layer, width in enumerate(layers):
        state[f"{layer}.running_mean"] = torch.randn(width, generator=generator).to(DEVICE)
        state[f"{layer}.running_var"] = torch.rand(width, generator=generator).add(0.5).to(DEVICE)
    return SimpleNamespace(network=SimpleNamespace(state=state, device=DEVICE), clients=clients)


def make_uploads(server, t, apart):
    """Make uploads of clients in five domains, `apart` from each other; some absent from round 2 on, some lie in 4."""
    n, generator = server.clients, torch.Generator().manual_seed(t)
    centres = apart * torch.randn(5, NUMBERS, generator=torch.Generator().manual_seed(0))
    signals = {
        "look": centres[torch.arange(n) % 5] + 0.3 * torch.randn(n, NUMBERS, generator=generator),
        "spread": 0.3 + torch.rand(n, NUMBERS, generator=generator),
        "images": torch.randint(2, 12, (n,), generator=generator).float(),
    }
    own = {
        name: source.cpu() + 0.3 * torch.rand(n, len(source), generator=generator)
        for name, source in server.network.state.items()
    }
    if own:
        signals["fresh"] = (torch.rand(n, generator=generator) > 0.1).float()
    if t == 4 and n > 4:
        signals["look"][0, 3], signals["spread"][1, 2], signals["images"][3] = torch.nan, -1, 0
        if own:
            own["0.running_mean"][2, 1] = torch.inf
    active = torch.rand(n, generator=generator) > (0.3 if t > 1 else -1)
    trust = active * torch.rand(n, generator=generator) if t == 3 else None
    moved = ({name: tensor.to(DEVICE) for name, tensor in part.items()} for part in (own, signals))
    return Uploads(*moved, active.to(DEVICE), None, None if trust is None else trust.to(DEVICE))


SMALL = [(1, 32, (5,)), (2, 1, (5,)), (20, 3, ()), (67, 32, (5, 40))]
LARGE = [(200, 40, (64, 16)), (1100, 32, (70,))]  # minutes without a GPU


@pytest.mark.parametrize(
    ("clients", "domains", "layers"),
    [pytest.param(*size, marks=pytest.mark.triton) for size in SMALL]
    + [pytest.param(*size, marks=pytest.mark.gpu) for size in LARGE],
)
@pytest.mark.parametrize("apart", [0.5, 2.0])
def test_fused_rounds_are_plain_rounds(clients, domains, layers, apart):
    fused = import_module("fedctta.aggregators.kin.fused")
    method, server = Kin(domains=domains), make_server(clients, layers)
    source, memory = server.network.state, method.init(server)
    for t in range(6):
        uploads = make_uploads(server, t, apart)
        kin, after = plain.update_all(server.network, uploads, memory, **RATES)
        found, held = fused.update_all(server.network, uploads, memory, **RATES)
        torch.testing.assert_close(found.matrix(), kin.matrix(), atol=1e-5, rtol=0)
        torch.testing.assert_close(held, after, atol=1e-5, rtol=1e-5)
        given, expected = (
            w.restricted(uploads.active, uploads.active if uploads.trust is None else uploads.trust)
            for w in (found, kin)
        )
        torch.testing.assert_close(given.matrix(), expected.matrix(), atol=1e-5, rtol=0)
        if layers:
            mixed = mix(restrict(kin, uploads.active, uploads.trust), uploads.own)
            for tensor in mixed.values():
                tensor.nan_to_num_(0, 0, 0)
            if t % 2:  # tensors on their own, not parts of one
                mixed = {name: tensor.clone() for name, tensor in mixed.items()}
            sent, expected = (module.recall(source, uploads, mixed, uploads.active, after) for module in (fused, plain))
            torch.testing.assert_close(sent, expected, atol=1e-5, rtol=1e-5)
        memory = after


@pytest.mark.gpu
def test_a_graph_of_fused_rounds_goes_on_as_plain_rounds_do():
    fused = import_module("fedctta.aggregators.kin.fused")
    method, server = Kin(), make_server(50, (64, 16))
    expected = method.init(server)
    uploads = make_uploads(server, 0, 0.5)
    _, expected = plain.update_all(server.network, uploads, expected, **RATES)
    _, held = fused.update_all(server.network, uploads, method.init(server), **RATES)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, new = fused.update_all(server.network, uploads, held, **RATES)
        torch._foreach_copy_([held[name] for name in new], list(new.values()))
    for t in range(1, 5):
        later = make_uploads(server, t, 0.5)
        for name, tensor in (uploads.own | uploads.signals).items():
            tensor.copy_((later.own | later.signals)[name])
        graph.replay()
        _, expected = plain.update_all(server.network, uploads, expected, **RATES)
        torch.testing.assert_close(held, expected, atol=1e-5, rtol=1e-5)
