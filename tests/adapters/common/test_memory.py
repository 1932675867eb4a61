"""RoTTA's memory, against plain lists."""

from __future__ import annotations

import math

import pytest
import torch

from fedctta.adapters.common.memory import EMPTY, Memory, empty, offered


class Lists:
    """The memory as one would write it without vmap: a list of [image number, age, entropy] for every class."""

    def __init__(self, places, classes):
        self.places, self.classes, self.rows = places, classes, [[] for _ in range(classes)]

    def score(self, row):
        return 1 / (1 + math.exp(-row[1] / self.places)) + row[2] / math.log(self.classes)

    def offer(self, number, label, entropy):
        row = [number, 0, entropy]
        sizes = [len(rows) for rows in self.rows]
        if sizes[label] >= self.places / self.classes:
            room = self.give_up([label], row)
        elif sum(sizes) < self.places:
            room = True
        else:
            room = self.give_up([k for k in range(self.classes) if sizes[k] == max(sizes)], row)
        if room:
            self.rows[label].append(row)
        for rows in self.rows:
            for each in rows:
                each[1] += 1

    def give_up(self, classes, row):
        worst = max((each for k in classes for each in self.rows[k]), key=self.score)
        if self.score(worst) <= self.score(row):
            return False
        for k in classes:
            self.rows[k] = [each for each in self.rows[k] if each is not worst]
        return True

    def contents(self):
        return {(n, k, age, entropy) for k, rows in enumerate(self.rows) for n, age, entropy in rows}


def contents(memory):
    """(image number, class, age, entropy) of everything kept; an image's pixels are its number."""
    parts = (memory.images.flatten(1)[:, 0].long(), memory.label, memory.age, memory.entropy)
    return {row for row in zip(*(part.tolist() for part in parts), strict=True) if row[1] != EMPTY}


def batch(count, classes, generator, skew=1.0):
    """Labels that favour low classes, entropies, and their images."""
    label = (classes * torch.rand(count, generator=generator) ** skew).long()
    return label, math.log(classes) * torch.rand(count, generator=generator)


def offer_all(memory, images, label, entropy, classes):
    kept = offered(memory, images, label, entropy, classes, torch.tensor([len(images)]))
    return Memory(*(part[0] for part in kept))


@pytest.mark.parametrize("skew", [1.0, 4.0])
@pytest.mark.parametrize(("places", "classes"), [(64, 10), (64, 100), (8, 3), (6, 2)])
def test_it_is_what_lists_do(places, classes, skew):
    generator = torch.Generator().manual_seed(classes)
    plain, memory, number = Lists(places, classes), empty((1, 2, 2), places), 0
    for size in (1, 40, 200, 7, 152):
        label, entropy = batch(size, classes, generator, skew)
        images = torch.arange(number, number + size).float().view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
        for k, h in zip(label.tolist(), entropy.tolist(), strict=True):
            plain.offer(number, k, h)
            number += 1
        memory = offer_all(memory, images, label, entropy, classes)
        ours, theirs = contents(memory), plain.contents()
        assert {row[:3] for row in ours} == {row[:3] for row in theirs}
        entropies = {row[0]: row[3] for row in theirs}
        assert all(row[3] == pytest.approx(entropies[row[0]]) for row in ours)
    assert number == 400
    assert len(ours) > 1


def test_stops_show_the_memory_on_its_way():
    generator = torch.Generator().manual_seed(0)
    label, entropy = batch(30, 3, generator)
    images = torch.arange(30.0).view(-1, 1, 1, 1)
    stops = torch.tensor([0, 11, 30])
    kept = offered(empty((1, 1, 1), 8), images, label, entropy, 3, stops)
    for i, stop in enumerate(stops.tolist()):
        plain = Lists(8, 3)
        for n in range(stop):
            plain.offer(n, label[n].item(), entropy[n].item())
        assert contents(Memory(*(part[i] for part in kept))) == plain.contents()


def test_by_hand():
    """Two places, two classes: a quota of one each."""
    images, classes = torch.arange(5.0).view(5, 1), 2
    entropy = torch.tensor([0.6, 0.1, 0.3, 0.65, 0.0])
    label = torch.tensor([0, 0, 0, 1, 1])
    kept = offered(empty((1,), 2), images, label, entropy, classes, torch.arange(6))
    kept_numbers = [{n for n, *_ in contents(Memory(*(part[i] for part in kept)))} for i in range(6)]
    # 0 comes in; 1 is surer and younger, so 0 leaves; 2 is less sure than 1: sigma(1/2) + 0.1 / ln 2 = 0.767 against
    # 0.5 + 0.3 / ln 2 = 0.93; 3 takes the empty place; 4 replaces it, being of its class.
    assert kept_numbers == [set(), {0}, {1}, {1}, {1, 3}, {1, 4}]


def test_a_newcomer_of_a_small_class_replaces_one_of_the_largest():
    memory = Memory(
        images=torch.arange(4.0).view(4, 1),
        label=torch.tensor([0, 0, 1, 1]),
        age=torch.tensor([3, 2, 1, 0]),
        entropy=torch.tensor([0.2, 0.2, 0.9, 0.2]),
    )
    after = offer_all(memory, torch.tensor([[9.0]]), torch.tensor([2]), torch.tensor([0.0]), 3)
    assert {row[:3] for row in contents(after)} == {(0, 0, 4), (1, 0, 3), (9, 2, 1), (3, 1, 1)}


def test_one_client_by_vmap_is_that_client_alone():
    generator = torch.Generator().manual_seed(0)
    label, entropy = batch(90, 4, generator)
    label, entropy = label.view(3, 30), entropy.view(3, 30)
    images = torch.arange(90.0).view(3, 30, 1, 1, 1)
    stops = torch.tensor([[5, 30], [17, 30], [30, 30]])
    start = empty((1, 1, 1), 9)
    together = torch.func.vmap(lambda i, k, h, s: offered(start, i, k, h, 4, s))(images, label, entropy, stops)
    for i in range(3):
        alone = offered(start, images[i], label[i], entropy[i], 4, stops[i])
        torch.testing.assert_close(Memory(*(part[i] for part in together)), alone)
