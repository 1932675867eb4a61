"""Which domains recall finds without being told, by looks alone: how pure its entries are, and how whole its domains.

    python benchmarks/found_domains.py [interval=1 dataset=tiny-imagenet-c model=resnet18 clients=20 slots=25 ...]

Devices and server keep their books as in a run, but no image passes the model. *Pure*: how much of an entry of the book
is of one domain. *Together*: how much of a domain is in one entry. Counted from round 100 on, or in the second half.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
import torch
from torch import Tensor

from fedctta.books.counting import add_up
from fedctta.books.library import Lists, Rules, Shelf, arrange, find_headings, find_time, hand_out, receive, sum_domains
from fedctta.books.notebook import Notebook
from fedctta.books.rows import Layout
from fedctta.core.appearance import appearance
from fedctta.core.network import Tensors
from fedctta.core.randomness import keys
from fedctta.runs.build import choose_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import expand, parse_words
from fedctta.streams import Stream

SET = "dataset=tiny-imagenet-c model=resnet18 clients=20 slots=25"
LAYOUT, BOOK, RULES = Layout(0), Notebook(), Rules()
UNITED = 8  # rounds after which a device looks for twins in its book


def exchange(shelf: Shelf, devices: list[Tensors]) -> tuple[Shelf, list[Tensors]]:
    """Return the server's parts and the devices after all have sent what they have seen, and got what others have."""
    part, name, changed, time = (torch.stack([p[key] for p in devices]) for key in ("part", "name", "changed", "time"))
    name = torch.where(part[..., 0] == 0, 0, name)
    who, slot = (name != 0).nonzero(as_tuple=True)
    lists = Lists(torch.arange(len(devices)), time)
    shelf = receive(shelf, who, name[who, slot], changed[who, slot], part[who, slot], lists)
    shelf = arrange(shelf, LAYOUT, RULES) if bool((shelf.domain < 0).any()) else shelf
    shelf = shelf._replace(time=find_time(shelf))
    counted = add_up(shelf, LAYOUT, RULES)
    sums, headings = sum_domains(shelf, counted, RULES.domains), find_headings(shelf, RULES.domains)
    handed = hand_out(shelf, counted, sums, headings, name)
    keys = ("book", "heading", "place", "received")
    got = [dict(zip(keys, each, strict=True)) | {"asked": own} for *each, own in zip(*handed, name, strict=True)]
    return shelf, [BOOK.receive(p | g) for p, g in zip(devices, got, strict=True)]


def notice(private: Tensors, looks: Tensor) -> Tensors:
    """Return a device's book with a batch in it."""
    private, _ = BOOK.recognise(LAYOUT, private, looks)
    sums = {"images": looks.new_full((1,), len(looks)), "look": looks.sum(0), "square": looks.square().sum(0)}
    return BOOK.add(private, LAYOUT.row(looks, **sums))


def find(stream: Stream, seed: int, interval: int) -> Counter[tuple[int, int]]:
    """Return how many batches of every (entry, domain) there were."""
    device = torch.device("cpu")
    devices = [BOOK.start(LAYOUT.width, device) | {"key": key} for key in keys(seed, stream.clients)]
    shelf, found = Shelf.empty(LAYOUT.width), Counter[tuple[int, int]]()
    for t in range(len(stream)):
        images = torch.from_numpy(stream.slot(t).images).movedim(-1, 2).float() / 255
        for i, x in enumerate(images):
            devices[i] = notice(devices[i], appearance(x))
            if t % UNITED == i % UNITED:
                devices[i] = BOOK.unite(LAYOUT, devices[i])
            entry = int(devices[i]["name"][devices[i]["belief"][:-1].argmax()])
            if t >= min(100, len(stream) // 2):
                found[entry, int(stream.domain[t, i])] += 1
        if (t + 1) % interval == 0:
            shelf, devices = exchange(shelf, devices)
    return found


def judge(found: Counter[tuple[int, int]], names: tuple[str, ...]) -> list[tuple[str, float, float, str]]:
    """Return of every domain and of all together how pure and how whole it is, and what it is most mixed with."""
    table = np.array([[found[e, d] for d in range(len(names))] for e in sorted({e for e, _ in found})], float)
    share = table / table.sum(1, keepdims=True)  # of an entry
    mixed = table.T @ share / np.maximum(table.sum(0), 1)[:, None]  # [D, D]
    whole = (table**2).sum(0) / np.maximum(table.sum(0), 1) ** 2
    others = mixed - np.diag(np.diag(mixed))
    weight = table.sum(0) / table.sum()
    rows = [
        (name, mixed[d, d], whole[d], names[others[d].argmax()] if others[d].max() > 0.02 else "")
        for d, name in enumerate(names)
    ]
    return [*rows, ("all", float(weight @ np.diag(mixed)), float(weight @ whole), "")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="a data set, a roaming stream, a seed and an interval")
    words = parser.parse_args().words
    words = [*words, *(word for word in SET.split() if not any(each.startswith("dataset=") for each in words))]
    (experiment,) = expand(parse_words([*words, "stream=roam", "adapter=none"]))
    stream = choose_parts(experiment, torch.device("cpu"), Cache()).stream
    found = find(stream, experiment.seed, experiment.interval)
    print(f"{'':20s}{'pure':>8s}{'together':>10s}  mixed with")
    for name, pure, whole, other in judge(found, tuple(stream.data.names)):
        print(f"{name:20s}{pure:8.3f}{whole:10.3f}  {other}")


if __name__ == "__main__":
    main()
