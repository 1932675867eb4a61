"""FedTHE+: a global and a personal head on one extractor, mixed for every image by weights found without labels.

With z the features of an image and g, q its logits by the global and the personal head:

    e      = argmin of  s H(e g + (1 - e) q)  +  (1 - s) (e ||z~ - h_g|| + (1 - e) ||z~ - h_l||)
    s      = cos(softmax g, softmax q)                                   where heads agree, be certain; else, be at home
    z~     = beta z + (1 - beta) m,   m <- alpha z + (1 - alpha) m       image by image, m starting at the first z
    logits = e g + (1 - e) q

h_g and h_l are the mean features of all source clients and of one's own. e starts at 1/2 and takes 20 steps of Adam, as
the softmax of two numbers. The "+" are `plus` more steps for every image, as in `memo`, on the extractor and both heads
(entropy of the mean over views of softmax(e g + (1 - e) q), e held); they are forgotten after the image.

Heads and mean features come from a file (see `fedctta.training.learning`), in which every source client has a personal
head; a deployed client keeps one of them, drawn by its key. With `heads=none` there was no such training, and this is a
port: g is the model's classifier, q a copy tuned on every batch by the entropy of its predictions, h_g the mean feature
of clean source images and h_l that of all images the client has met. Nothing is uploaded, so no aggregator changes it.

The paper's beta is 0.1, the published code's 0.3, mixed in anew at each of the 20 steps. The original draws views by
AugMix; here they are those of `cotta`. BatchNorm layers use the stored statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.augmentation import views
from fedctta.adapters.common.learnt import read_learnt
from fedctta.adapters.common.losses import cosine, entropy
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam, adam_memory, descend
from fedctta.adapters.memo import IMAGES_AT_ONCE, marginal_entropy
from fedctta.core.at_once import at_once
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.randomness import advance, fork
from fedctta.core.tensors import choose, named, under
from fedctta.errors import UserError
from fedctta.ranges import Count, CountOrZero, NotNegative, Share

SOURCE_BATCH = 200


@dataclass(frozen=True)
class FedTHE(Adapter):
    """Mix a global and a personal head by weights found for every image, then step on its views (plus=0: only mix)."""

    name: ClassVar[str] = "fedthe"
    pictures: ClassVar[bool] = True
    learns: ClassVar[str] = "heads"
    needs: ClassVar[tuple[Need, ...]] = ("images", "features", "gradients")
    heads: str = "none"  # auto, or a path: trained heads
    steps: CountOrZero = 20
    lr: NotNegative = 0.1
    alpha: Share = 0.1
    beta: Share = 0.1
    plus: CountOrZero = 3
    plus_lr: NotNegative = 5e-4
    views: Count = 16
    tune: CountOrZero = 10  # of the personal head of heads=none, a batch
    tune_lr: NotNegative = 1e-5
    images: Count = 2000

    def init(self, network: Network) -> Client:
        """Own nothing; heads, mean features, the moving average and the key are private."""
        head, device = classifier(network), network.device
        none = torch.zeros_like(head["weight"][0])
        private = {**named("global", {**head, "feature": none}), **named("personal", {**head, "feature": none})}
        if self._trained:
            table = self._table(network)
            first = {name: tensor[0] for name, tensor in under("personal", table).items()}
            private |= {**named("global", under("global", table)), **named("personal", first)}
        private |= {"before": none, "after": none, "batches": torch.zeros((), device=device)}
        return Client({}, {**private, "key": torch.zeros((), dtype=torch.int64, device=device)})

    @property
    def _trained(self) -> bool:
        return self.heads != "none"

    @property
    def source_images(self) -> int:
        """As many as asked for, unless a file holds their mean feature."""
        return 0 if self._trained else self.images

    def study(self, network: Network, images: Tensor, batch: int) -> Tensors:
        """Return the mean feature of source images."""
        return {
            "global.feature": torch.cat([network({}, x).features for x in torch.split(images, SOURCE_BATCH)]).mean(0)
        }

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Move the average on, and see to the personal head."""
        old = client.private
        z, first = network({}, x).features, old["batches"] == 0
        before = torch.where(first, z[0], old["after"])
        personal = self._personal(network, old, z, first)
        moved = {"before": before, "after": moving_average(before, z, self.alpha)[-1], "batches": old["batches"] + 1}
        return Client({}, {**old, **named("personal", personal), **moved, "key": advance(old["key"])})

    def _personal(self, network: Network, old: Tensors, z: Tensor, first: Tensor) -> Tensors:
        """Return the personal head: drawn before the first batch, or tuned on every one."""
        kept = under("personal", old)
        if self._trained:
            table = under("personal", self._table(network))
            drawn = fork(old["key"], 1) % len(table["weight"])
            return choose(first, {name: tensor.index_select(0, drawn[None])[0] for name, tensor in table.items()}, kept)
        feature = torch.lerp(kept.pop("feature"), z.mean(0), 1 / (old["batches"] + 1))
        head, memory = kept, adam_memory(kept)
        for _ in range(self.tune):
            gradient = torch.func.grad(lambda h: entropy(logits_by(h, z)).mean())(head)
            head, memory = adam(head, gradient, memory, self.tune_lr)
        return {**head, "feature": feature}

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K] of the mixed heads, each image with its own weight and, with `plus`, its own model."""
        own = client.private
        shared, personal = under("global", own), under("personal", own)
        z = network({}, x).features
        g, q = logits_by(shared, z), logits_by(personal, z)
        smooth = torch.lerp(moving_average(own["before"], z, self.alpha), z, self.beta)
        far = [torch.linalg.vector_norm(smooth - head["feature"], dim=-1) for head in (shared, personal)]
        e = mixing_weights(g, q, far[0], far[1], self.steps, self.lr)
        return mixed(e[:, None], g, q) if self.plus == 0 else self._plus(network, own, x, e)

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """As after, with the personal head as it is before it is tuned on x."""
        untuned = replace(self, tune=0)
        return self.predict(network, untuned.adapt(network, client, x), x)

    def predicts_alike(self, communicates: bool) -> bool:
        """Heads from a file stay as they are."""
        return self._trained or self.tune == 0

    def _plus(self, network: Network, own: Tensors, x: Tensor, e: Tensor) -> Tensor:
        """Return the logits[B, K] of B models, each some steps away, on views of its image."""
        shared, personal = under("global", own), under("personal", own)
        names = {f"{network.classifier}.{name}": name for name in classifier(network)}
        parameters = {full: shared[name].view_as(network.state[full]) for full, name in names.items()}
        start = (network.parameters | parameters, {name: personal[name] for name in classifier(network)})

        def logits(weights: tuple[Tensors, Tensors], images: Tensor, e: Tensor) -> Tensor:
            output = network(weights[0], images)
            return mixed(e, output.logits, logits_by(weights[1], output.features))

        def of_one(image: Tensor, key: Tensor, e: Tensor) -> Tensor:
            weights = start
            for number in range(self.plus):
                seen = views(image[None], fork(key, number + 1), "cotta", self.views).flatten(0, 1)
                slope = torch.func.grad(lambda w, seen=seen: marginal_entropy(logits(w, seen, e)))(weights)
                weights = (descend(weights[0], slope[0], self.plus_lr), descend(weights[1], slope[1], self.plus_lr))
            return logits(weights, image[None], e)[0]

        keys = fork(own["key"] + torch.arange(len(x), device=x.device), 2)
        found: Tensor = at_once(network, of_one, IMAGES_AT_ONCE)(x, keys, e)
        return found

    def reads(self, network: Network) -> tuple[Path, ...]:
        """The heads' file, if they come from one."""
        return (read_learnt(self.name, self.learns, self.heads, network)[0],) if self._trained else ()

    def check(self, network: Network, batch: int) -> None:
        """There must be a classifier, and trained heads must be this model's."""
        super().check(network, batch)
        if self._trained:
            self._table(network)

    def _table(self, network: Network) -> Tensors:
        """Return the trained heads: global.* and, one row per source client, personal.*."""
        path, tensors = read_learnt(self.name, self.learns, self.heads, network)
        head = classifier(network)
        head["feature"] = head["weight"][0]
        clients = len(tensors.get("personal.weight", ()))
        shapes = {f"global.{name}": tensor.shape for name, tensor in head.items()}
        shapes |= {f"personal.{name}": torch.Size([clients, *tensor.shape]) for name, tensor in head.items()}
        if not clients or shapes != {name: tensor.shape for name, tensor in tensors.items()}:
            raise UserError(f"{path} holds no heads for this model: make them with `fedctta pretrain method=fedthe`")
        return tensors


def classifier(network: Network) -> Tensors:
    """Return the source's head: weight[K, D] and, if it has one, bias."""
    names = {kind: f"{network.classifier}.{kind}" for kind in ("weight", "bias")}
    head = {kind: network.state[name] for kind, name in names.items() if name in network.state}
    return head | {"weight": head["weight"].flatten(1)}  # it may be a convolution of single pixels


def logits_by(head: Tensors, z: Tensor) -> Tensor:
    """Return the logits[B, K] a head gives features z[B, D]."""
    return F.linear(z, head["weight"], head.get("bias"))


def mixed(e: Tensor, g: Tensor, q: Tensor) -> Tensor:
    """Return e g + (1 - e) q."""
    return e * g + (1 - e) * q


def moving_average(before: Tensor, z: Tensor, alpha: float) -> Tensor:
    """Return m_b[B, D] after each image: m_b = alpha z_b + (1 - alpha) m_(b-1), from m = before.

    Written out, m_b = (1 - alpha)^b before + sum over j <= b of alpha (1 - alpha)^(b - j) z_j, b counted from 1: one
    matrix product.
    """
    age = torch.arange(len(z), device=z.device)
    later = age[:, None] - age
    weight = torch.where(later >= 0, alpha * (1 - alpha) ** later.clamp_min(0).to(z.dtype), 0.0)
    return (1 - alpha) ** (age + 1).to(z.dtype)[:, None] * before + weight @ z


def mixing_loss(lean: Tensor, g: Tensor, q: Tensor, far_g: Tensor, far_l: Tensor) -> Tensor:
    """Return, for every image, what e = sigmoid(lean) is to minimise."""
    e = lean.sigmoid()
    agree = cosine(g.softmax(-1), q.softmax(-1))
    return agree * entropy(mixed(e[:, None], g, q)) + (1 - agree) * mixed(e, far_g, far_l)


def mixing_weights(g: Tensor, q: Tensor, far_g: Tensor, far_l: Tensor, steps: int, lr: float) -> Tensor:
    """Return e[B] after steps of Adam from 1/2, image by image."""
    found = {"lean": torch.zeros_like(far_g)}
    memory = adam_memory(found)
    for _ in range(steps):
        gradient = torch.func.grad(lambda w: mixing_loss(w["lean"], g, q, far_g, far_l).sum())(found)
        # e is the softmax of two numbers that take opposite steps: their difference takes twice the step.
        found, memory = adam(found, gradient, memory, 2 * lr)
    return found["lean"].sigmoid()
