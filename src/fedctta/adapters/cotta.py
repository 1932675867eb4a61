"""CoTTA: a student learns from a slow teacher's averaged views, and forgets back to the source bit by bit.

    y        = the teacher's logits; where the source's mean confidence in the batch is < 0.92, their mean over 32 views
    loss     = (1/B) sum_b CE(softmax(y_b), student(x_b))         one step of Adam on all parameters of the student
    teacher <- 0.999 teacher + 0.001 student
    student <- source, every element with probability 0.01

The teacher predicts, so it is what the client owns: it is uploaded, and after a download the teacher is the aggregate.
The student and Adam's moments are not uploaded. BatchNorm layers of all three models normalise with the batch's
statistics.

The published code returns y itself, averaged views included, from before the step: `predict=before` does so. After the
download (`predict=after`) the client predicts with the teacher as it then is and one plain pass. Whether views are
averaged may differ from client to client and clients that run together cannot branch, so the views are always computed,
unless `confidence` is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.adapters.common.augmentation import augment, view_keys
from fedctta.adapters.common.fused_steps import can_fuse_steps, restore_fused
from fedctta.adapters.common.losses import cross_entropy
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam, adam_memory
from fedctta.adapters.tent import require_batch
from fedctta.core.at_once import at_once
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import refreshed
from fedctta.core.randomness import advance, fork, fork_all, uniform
from fedctta.core.tensors import may_hold, named, towards, under
from fedctta.ranges import Count, NotNegative, Share

# Images of one client at once, all views together: enough to keep a machine busy, few enough for its memory.
CPU_IMAGES, CUDA_IMAGES = 100, 160


@dataclass(frozen=True)
class CoTTA(Adapter):
    """Learn all weights from a slow teacher's augmented predictions; restore some of them to the source."""

    name: ClassVar[str] = "cotta"
    pictures: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("images", "gradients")
    single_images: ClassVar[bool] = False
    lr: NotNegative = 1e-3
    confidence: Share = 0.92  # of the source model, below which views are averaged
    views: Count = 32
    momentum: Share = 0.999
    restore: Share = 0.01

    def init(self, network: Network) -> Client:
        """Own the teacher's parameters; the student, its moments and the key are private."""
        student = network.parameters
        key = torch.zeros((), dtype=torch.int64, device=network.device)
        return Client(student, {**named("student", student), **adam_memory(student), "key": key})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Teach the student, let the teacher follow, restore."""
        key, student = client.private["key"], under("student", client.private)
        target = self._target(network, client, x)

        def loss(weights: Tensors) -> Tensor:
            return cross_entropy(network(weights, x, refreshed()).logits, target).mean()

        student, memory = adam(student, torch.func.grad(loss)(student), client.private, self.lr)
        teacher = towards(client.own, student, 1 - self.momentum)
        student = restored(student, network.state, fork(key, 2), self.restore)
        return Client(teacher, {**named("student", student), **memory, "key": advance(key)})

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the teacher's logits[B, K], BatchNorm with the statistics of x."""
        return network(client.own, x, refreshed()).logits

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return y, the very logits[B, K] the student is about to learn from."""
        return self._target(network, client, x)

    def check(self, network: Network, batch: int) -> None:
        """BatchNorm needs more than one image, and views move pixels."""
        if self.confidence:
            self.require(network, "images", "cotta.confidence=0 (no views)")
        self.require(network, "gradients")
        require_batch(self.name, network, batch)

    def _target(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the logits[B, K] to learn from."""
        teacher, key = client.own, fork(client.private["key"], 1)

        def of_view(one: Tensor) -> Tensor:
            return network(teacher, augment(x, one), refreshed()).logits

        plain = network(teacher, x, refreshed()).logits
        if self.confidence == 0:
            return plain
        sure = network({}, x, refreshed()).logits.softmax(-1).amax(-1).mean()
        unsure = sure < self.confidence
        if not may_hold(unsure):
            return plain
        most = max(1, (CUDA_IMAGES if x.is_cuda else CPU_IMAGES) // len(x))
        together = math.ceil(self.views / math.ceil(self.views / most))  # parts of equal size
        averaged = at_once(network, of_view, together)(view_keys(key, self.views)).mean(0)
        return torch.where(unsure, averaged, plain)


def restored(weights: Tensors, source: Tensors, key: Tensor, share: float) -> Tensors:
    """Return the weights with every element set back to the source with probability `share`."""
    chances = fork_all(key, tuple(range(len(weights)))).unbind(-1)
    return {
        name: _restore(weight, source[name], chance, share)
        for chance, (name, weight) in zip(chances, weights.items(), strict=True)
    }


def _restore(weight: Tensor, source: Tensor, key: Tensor, share: float) -> Tensor:
    fused = restore_fused(weight, source, key, share) if can_fuse_steps(weight, source) else None
    return torch.where(uniform(key, weight.shape) < share, source, weight) if fused is None else fused
