"""Weights in bfloat16: what is stored, how it is rounded, and that functions of clients see float32."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.core.clients import Client, InChunks, by_loop, by_vmap, stack
from fedctta.core.randomness import keys
from fedctta.core.storage import KEY, Storage, choose_storage, draw, first_keys, narrow, server_key, widen

MANY = 20_000


def test_rounding_by_chance_keeps_the_mean_and_goes_to_a_neighbour(device):
    for number in (0.3001, -1.003, 1e-5):
        found = narrow(torch.full((MANY,), number, device=device), draw(keys(3, 1, device)[0], torch.Size([MANY])))
        assert found.dtype == torch.bfloat16
        assert len(found.unique()) == 2
        assert (found.float() - number).abs().max() < abs(number) * 2**-7
        assert found.double().mean().item() == pytest.approx(number, rel=2e-4)


def test_numbers_of_bfloat16_stay(device):
    numbers = torch.randn(500, device=device).bfloat16()
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf], device=device).bfloat16()
    for some in (numbers, special):
        assert torch.equal(narrow(some.float(), draw(keys(0, 1, device)[0], some.shape)), some)
    nan = torch.tensor([0x7FC00000, 0x7FFFFFFF, -1], dtype=torch.int32, device=device).view(torch.float32)
    kept = narrow(nan, torch.full((3,), 2**16 - 1, dtype=torch.int32, device=device))
    assert kept.dtype == torch.bfloat16
    assert kept.isnan().all()


def test_chance_is_uniform_and_another_for_every_key(device):
    one, other = (draw(key, torch.Size([MANY])) for key in keys(0, 2, device))
    for drawn in (one, other):
        assert drawn.min() >= 0
        assert drawn.max() < 2**16
        assert drawn.double().mean().item() == pytest.approx(2**15, rel=0.02)
    assert (one != other).float().mean() > 0.99


def test_small_steps_add_up():
    """To the nearest, 0.5 would stay 0.5: numbers of bfloat16 are 0.002 apart there."""
    storage = Storage(frozenset({"w"}))
    step = storage.lift(by_vmap)(lambda client: Client({"w": client.own["w"] + 1e-5}))
    start = Client({"w": torch.full((50, 50), 0.5)})
    clients = stack(storage.begin(start), 2)._replace(private={KEY: first_keys(0, 2, torch.device("cpu"))})
    for _ in range(300):
        clients = step(clients)
    assert clients.own["w"].float().mean().item() == pytest.approx(0.503, abs=1e-4)


def test_kernels_and_matrices_are_stored_so(tiny_network):
    client = adapters.create("grad").init(tiny_network)
    storage = choose_storage(tiny_network, client)
    assert storage is not None
    assert storage.names == {name for name, tensor in tiny_network.parameters.items() if tensor.dim() > 1}
    stored = storage.begin(client)
    for name, tensor in stored.own.items():
        assert tensor.dtype == (torch.bfloat16 if client.own[name].dim() > 1 else torch.float32), name
        assert widen(stored.own)[name].dtype == torch.float32
    for name in ("bn", "tent"):
        assert choose_storage(tiny_network, adapters.create(name).init(tiny_network)) is None


@pytest.mark.parametrize("lift", [InChunks(2), InChunks(2, in_place=True), by_vmap, by_loop])
def test_functions_see_float32_and_no_key_and_round_alike(lift):
    storage = Storage(frozenset({"w"}))
    key = first_keys(0, 3, torch.device("cpu"))
    w = torch.arange(3 * 4 * 5.0).view(3, 4, 5).bfloat16()

    def adapt(client, x):
        assert client.own["w"].dtype == torch.float32
        assert not client.private
        return Client({"w": client.own["w"] * 1.0001, "b": client.own["b"] + x}), 2 * client.own["w"]

    clients = Client({"w": w.clone(), "b": torch.zeros(3)}, {KEY: key.clone()})
    changed, doubled = storage.lift(lift)(adapt)(clients, torch.ones(3))
    assert changed.own["w"].dtype == torch.bfloat16
    assert changed.own["b"].dtype == doubled.dtype == torch.float32
    assert (changed.private[KEY] != key).all()
    for i in range(3):
        expected = storage.narrow({"w": w[i].float() * 1.0001}, key[i])["w"]
        assert torch.equal(changed.own["w"][i], expected)
    assert storage.lift(lift).__name__ == lift.__name__


def test_the_server_rounds_by_the_same_chance_for_all_clients_and_by_another_after_every_batch():
    storage = Storage(frozenset({"w"}))
    before = {KEY: first_keys(0, 4, torch.device("cpu"))}
    after = {KEY: before[KEY] + 1}
    same = {"w": torch.randn(1, 30, 30).expand(4, 30, 30), "b": torch.randn(4, 3)}
    one, other = (storage.narrow(same, server_key(private), stacked=True) for private in (before, after))
    assert torch.equal(one["w"], one["w"][:1].expand_as(one["w"]))
    assert not torch.equal(one["w"], other["w"])
    assert one["b"] is same["b"]
