"""Kernels for a device's book give what plain torch does."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import recall
from fedctta.adapters.recall import Recall
from fedctta.books import notebook as notebooks
from fedctta.books.fused_notebook import can_fuse_book
from fedctta.books.notebook import Notebook
from fedctta.books.rows import Layout
from fedctta.core.appearance import NUMBERS
from fedctta.core.clients import Client, stack
from fedctta.core.randomness import keys

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYOUT = Layout(70)
CLIENTS = 3


def open_books(notebook):
    """Return the private tensors of clients who have got a book with two domains of the four that they meet."""
    private = stack(Client({}, notebook.start(LAYOUT.width, DEVICE)), CLIENTS).private
    book = torch.rand(CLIENTS, notebook.domains, LAYOUT.width, generator=torch.Generator().manual_seed(1))
    columns, levels = LAYOUT.parts, torch.tensor([0.0, 5.0])[: notebook.domains, None]
    book[:, :2, columns["images"]] = 40
    book[:, :2, columns["look"]] = 40 * levels
    book[:, :2, columns["square"]] = 40 * (levels.square() + 0.01)
    book[:, :2, columns["measured"]] = 30
    held = torch.zeros(CLIENTS, notebook.domains)
    held[:2, :2] = 1
    return private | {"book": book.to(DEVICE), "held": held.to(DEVICE), "key": keys(0, CLIENTS, DEVICE)}


def live(notebook, fused, batches, images, monkeypatch):
    """Return what clients hold after batches of four domains, and what each was normalised with."""
    for place in (notebooks, recall):
        monkeypatch.setattr(place, "can_fuse_book", lambda *_: fused)
    adapter = Recall(domains=notebook.domains)
    private, generator = open_books(notebook), torch.Generator().manual_seed(2)
    blends = []

    def step(private, looks, weights, row):
        private, page = notebook.recognise(LAYOUT, private, looks)
        blend = adapter._blend(LAYOUT, private, page, weights, images)
        sums = {"look": looks.sum(0), "square": looks.square().sum(0), "measured": row[:1], "moments": row}
        added = notebook.add(private, LAYOUT.row(looks, images=row.new_full((1,), images), **sums), page.part)
        return added, (page, blend)

    for t in range(batches):
        levels = 5.0 * ((t + torch.arange(CLIENTS)) // 2 % 4)[:, None, None]
        looks = levels + 0.1 * torch.randn(CLIENTS, images, NUMBERS, generator=generator)
        weights = torch.rand(CLIENTS, notebook.domains + 1, generator=generator)
        row = torch.rand(CLIENTS, 2 * LAYOUT.channels, generator=generator)
        with torch.no_grad():
            private, found = torch.func.vmap(step)(private, *(x.to(DEVICE) for x in (looks, weights, row)))
        blends.append(found)
    return private, blends


@pytest.mark.triton
@pytest.mark.parametrize(("domains", "images"), [(5, 7), (3, 10), (2, 4), (40, 3), (1, 2), (5, 1)])
def test_a_book_is_kept_alike(domains, images, monkeypatch):
    """With room for all domains, or less, so that some are replaced; and for single images."""
    notebook = Notebook(domains, half_life=100.0)
    found, expected = (live(notebook, fused, 9, images, monkeypatch) for fused in (True, False))
    for name, tensor in expected[0].items():
        off = 2e-4 if tensor.is_floating_point() else 0
        torch.testing.assert_close(found[0][name], tensor, atol=off, rtol=off, msg=name)
    torch.testing.assert_close(found[1], expected[1], atol=2e-4, rtol=2e-4)
    if images > 1:
        assert (found[0]["name"] != 0).any()
    assert found[0]["belief"].sum(-1).tolist() == pytest.approx([1.0] * CLIENTS, abs=1e-5)


@pytest.mark.triton
@pytest.mark.parametrize("domains", [1, 5, 40])
def test_domains_of_which_too_little_is_known_are_found(domains, monkeypatch):
    adapter, generator = Recall(domains=domains, half_life=50.0), torch.Generator().manual_seed(3)
    clients = 60
    rows = 120 * torch.rand(2, clients, domains, LAYOUT.width, generator=generator)
    rows *= torch.rand(2, clients, 1, LAYOUT.width, generator=generator) > 0.3  # some were never scored or measured
    chance = torch.rand(3, clients, domains + 1, generator=generator)
    private = {
        "part": rows[0],
        "book": rows[1],
        "changed": (100 * chance[0, :, :-1]).long(),
        "held": (chance[1, :, :-1] > 0.5).float(),
        "belief": chance[2],
        "weights": chance[0],
        "received": (100 * chance[1, :, 0]).long(),
        "time": (60 + 60 * chance[1, :, 0]).long(),
        "batches": torch.arange(clients),
    }
    private = {name: tensor.to(DEVICE) for name, tensor in private.items()}
    found = []
    for fused in (True, False):
        monkeypatch.setattr(recall, "can_fuse_book", lambda *_, fused=fused: fused)
        with torch.no_grad():
            found.append(torch.stack(torch.func.vmap(adapter._lacks)(private)))
    assert torch.equal(*found)
    assert all(0 < part.sum() < clients for part in found[0])


def test_on_a_cpu_there_are_no_kernels():
    assert not can_fuse_book(torch.zeros(32, 100))
