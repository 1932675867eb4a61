"""The client of pFedBBN as a first version is written: a model object whose norms keep statistics of three networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.adapters.bbn import FEW_CLASSES, BalancedNorm
from fedctta.adapters.common.augmentation import augment
from fedctta.adapters.common.balanced import find_rates, image_statistics, move_statistics, over_classes
from fedctta.adapters.common.losses import entropy
from fedctta.bench.plain_clients import PlainClient
from fedctta.core.norms import Statistics


class BalancedClient(PlainClient):
    """bbn: source, teacher and student pass the batch; one step of Adam on scales and shifts."""

    def __init__(self, source: nn.Module, published: bool = False) -> None:
        super().__init__(source)
        self.model.requires_grad_(False)
        self.classes = _classes(self.model)
        for name, layer in [(n, m) for n, m in self.model.named_modules() if isinstance(m, nn.BatchNorm2d)]:
            self.model.set_submodule(name, ThreefoldNorm(layer, self.classes))
        self.layers = [layer for layer in self.model.modules() if isinstance(layer, ThreefoldNorm)]
        affine = [tensor.requires_grad_() for one in self.layers for tensor in (one.norm.weight, one.norm.bias)]
        self.optimiser = torch.optim.Adam(affine, lr=BalancedNorm.lr)
        self.seen = 0

    def adapt(self, x: Tensor) -> None:
        """Move the statistics of all three networks and take one step."""
        self.seen += 1
        view = augment(x, torch.tensor(self.seen, device=x.device))
        labels = F.one_hot(self.predict(x).argmax(1), self.classes).to(x.dtype)
        limit = FEW_CLASSES["threshold"] * math.log(self.classes)
        with torch.no_grad():
            source = self._run("source", x, labels)
        teacher, student = self._run("teacher", x, labels), self._run("student", view, labels)
        passed = entropy(teacher.detach()) < limit
        distil = (F.cross_entropy(student, teacher.argmax(1), reduction="none") * passed).mean()
        drift = F.mse_loss(teacher.softmax(1), source.softmax(1))
        (distil + BalancedNorm.consistency * drift).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.optimiser.zero_grad()

    def _run(self, who: str, x: Tensor, labels: Tensor) -> Tensor:
        for layer in self.layers:
            layer.who, layer.labels = who, labels
        logits: Tensor = self.model(x)
        for layer in self.layers:
            layer.labels = None
        return logits

    def travels(self, name: str) -> bool:
        """Scales, shifts and the statistics to predict with are sent."""
        return ".norm." in name and not name.endswith("num_batches_tracked")


class ThreefoldNorm(nn.Module):
    """A BatchNorm layer with statistics of classes for each of three networks that share its place."""

    def __init__(self, layer: nn.BatchNorm2d, classes: int) -> None:
        super().__init__()
        self.norm, self.who = layer, ""
        self.labels: Tensor | None = None
        self.register_buffer("source_weight", layer.weight.detach().clone())
        self.register_buffer("source_bias", layer.bias.detach().clone())
        for who in ("source", "teacher", "student"):
            for kind in Statistics._fields:
                self.register_buffer(f"{who}_{kind}", layer.get_buffer(f"running_{kind}").repeat(classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise as stored or, given labels, with balanced statistics that this batch has moved."""
        if self.labels is None:
            stored: Tensor = self.norm(x)
            return stored
        before = Statistics(self.get_buffer(f"{self.who}_mean"), self.get_buffer(f"{self.who}_var"))
        classes = move_statistics(before, image_statistics(x), find_rates(self.labels, FEW_CLASSES["eta"]))
        now = over_classes(classes)
        with torch.no_grad():
            before.mean.copy_(classes.mean.detach())
            before.var.copy_(classes.var.detach())
            if self.who == "teacher":
                self.norm.get_buffer("running_mean").copy_(now.mean)
                self.norm.get_buffer("running_var").copy_(now.var)
        own = (self.norm.weight, self.norm.bias)
        weight, bias = (self.source_weight, self.source_bias) if self.who == "source" else own
        scale = weight * torch.rsqrt(now.var + self.norm.eps)
        return (x - now.mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + bias.view(-1, 1, 1)

    source_weight: Tensor
    source_bias: Tensor


def _classes(model: nn.Module) -> int:
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1].out_features
