"""RoTTA: robust statistics, a balanced memory to learn from, and a slow teacher that predicts.

The teacher labels the batch with stored statistics, and its images are offered to a memory of 64 (see `memory`). After
every 64 images offered, both networks pass through the memory, the student through an augmented view of it, with
statistics that move by alpha = 0.05 and that they normalise with at once:

    mu <- (1 - alpha) mu + alpha m,    var <- (1 - alpha) var + alpha v        m, v over the memory
    loss = mean over the memory of CE(p_teacher, p_student) exp(-a) / (1 + exp(-a)),      a = age / 64
    student: one step of Adam on scales and shifts;     teacher <- (1 - nu) teacher + nu student,    nu = 0.001

The teacher's scales, shifts and statistics are uploaded; the student, its optimiser and the memory are not. When an
update is due depends on how many images a client has seen, which may differ between clients, so it cannot steer what
they compute together: every batch of B images computes ceil(B / 64) updates, and one that is not due changes nothing.
Batches of 64, or a multiple, waste nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.adapters.common.augmentation import augment
from fedctta.adapters.common.losses import cross_entropy, entropy
from fedctta.adapters.common.memory import EMPTY, Memory, empty, offered
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam, adam_memory
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, Statistics, batch_statistics, blend
from fedctta.core.randomness import advance, fork
from fedctta.core.tensors import choose, masked_mean, named, only, towards, under
from fedctta.errors import UserError
from fedctta.ranges import Count, NotNegative, Share


@dataclass(frozen=True)
class RoTTA(Adapter):
    """Learn from a class-balanced memory with robust statistics; a slow teacher predicts."""

    name: ClassVar[str] = "rotta"
    pictures: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("images", "batchnorm", "affine", "features", "gradients")
    lr: NotNegative = 1e-3
    alpha: Share = 0.05
    nu: Share = 0.001
    places: Count = 64
    side: Count = 32  # of the images, which the memory makes room for before it sees one

    def init(self, network: Network) -> Client:
        """Own the teacher; the student, its optimiser, the memory and the number of images seen are private."""
        affine = only(network.affine, network.state)
        teacher = {**affine, **network.statistics}
        zero = torch.zeros((), dtype=torch.int64, device=network.device)
        memory = empty((3, self.side, self.side), self.places, network.device)
        private = {**named("student", teacher), **adam_memory(affine), **_tensors(memory), "seen": zero, "key": zero}
        return Client(teacher, private)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Offer the batch to the memory, and learn from it whenever that is due."""
        if x.shape[1:] != (3, self.side, self.side):
            raise UserError(f"rotta.side={self.side} does not fit images of {list(x.shape[1:])}: set it to their side")
        seen, key = client.private["seen"], client.private["key"]
        updates = -(-len(x) // self.places)
        due = self.places * torch.arange(1, updates + 1, device=x.device) - seen % self.places
        stops = torch.cat([due.clamp(max=len(x)), due.new_full((1,), len(x))])

        logits = network(client.own, x).logits
        memory = Memory(**under("memory", client.private))
        memories = offered(memory, x, logits.argmax(-1), entropy(logits), logits.shape[-1], stops)
        for update in range(updates):
            then = Memory(*(part[update] for part in memories))
            after = self._learn(network, client, then, fork(key, update))
            do = due[update] <= len(x)
            client = Client(
                choose(do, after.own, client.own), {**client.private, **choose(do, after.private, client.private)}
            )
        last = Memory(*(part[-1] for part in memories))
        return client._replace(private={**client.private, **_tensors(last), "seen": seen + len(x), "key": advance(key)})

    def _learn(self, network: Network, client: Client, memory: Memory, key: Tensor) -> Client:
        """Take one step of the student and let the teacher follow."""
        taken = (memory.label != EMPTY).to(memory.images.dtype)
        rule, view = robust(self.alpha, taken), augment(memory.images, key).to(network.dtype)
        weight = torch.sigmoid(-memory.age / self.places)
        teacher = network(client.own, memory.images.to(network.dtype), rule)
        student = under("student", client.private)
        affine = only(network.affine, student)

        def loss(weights: Tensors) -> tuple[Tensor, Tensors]:
            output = network({**student, **weights}, view, rule)
            return masked_mean(weight * cross_entropy(output.logits, teacher.logits), taken), output.statistics

        gradient, statistics = torch.func.grad(loss, has_aux=True)(affine)
        affine, moments = adam(affine, gradient, client.private, self.lr)
        follows = towards(only(affine, client.own), affine, self.nu)
        return Client({**follows, **teacher.statistics}, {**named("student", {**affine, **statistics}), **moments})


def robust(momentum: float, weights: Tensor) -> NormRule:
    """Normalise with, and keep, (1 - a) old + a batch, images counted by weights[B]."""

    def rule(name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
        new = blend(old, batch_statistics(x, weights), momentum)
        return new, new

    return rule


def _tensors(memory: Memory) -> Tensors:
    return named("memory", memory._asdict())
