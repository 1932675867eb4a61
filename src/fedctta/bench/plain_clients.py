"""One client as a first version is written: a model object of its own, changed in place by torch's own tools.

These do what the adapters of the same names do. `published` asks for the loss and optimiser of published code where it
differs from the paper (TTA-grad: pseudo-labels and Adam instead of entropy and plain descent).
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedctta.adapters.grad import EntropyGradient, mean_entropy, pseudo_label_loss
from fedctta.adapters.tent import Tent
from fedctta.core.network import Tensors


class PlainClient:
    """A client with a model of its own."""

    momentum = 0.1  # of BatchNorm's running statistics

    def __init__(self, source: nn.Module, published: bool = False) -> None:
        self.model = copy.deepcopy(source)
        for layer in norms(self.model):
            layer.momentum = self.momentum

    def adapt(self, x: Tensor) -> None:
        """Adapt to a batch."""
        raise TypeError(f"{type(self).__name__} must define adapt")

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return logits with the stored statistics."""
        logits: Tensor = self.model.eval()(x)
        return logits

    @torch.no_grad()
    def answer(self, probe: Tensor) -> Tensor:
        """Return the mean logits on a probe."""
        logits: Tensor = self.model.eval()(probe)
        return logits.mean(0)

    def upload(self) -> Tensors:
        """Return what travels, by name; these are the model's own tensors."""
        return {name: tensor for name, tensor in self.model.state_dict().items() if self.travels(name)}

    def travels(self, name: str) -> bool:
        """Say whether a tensor is sent to the server."""
        return "running" in name


class StatisticsClient(PlainClient):
    """bn: one pass in training mode, whose statistics are kept."""

    momentum = 1.0

    @torch.no_grad()
    def adapt(self, x: Tensor) -> None:
        """Refresh the statistics."""
        self.model.train()(x)


class GradientClient(PlainClient):
    """grad: one step on all parameters."""

    def __init__(self, source: nn.Module, published: bool = False) -> None:
        super().__init__(source)
        optimiser = torch.optim.Adam if published else torch.optim.SGD
        self.loss = pseudo_label_loss if published else mean_entropy
        self.optimiser = optimiser(self.model.parameters(), lr=EntropyGradient.lr)

    def adapt(self, x: Tensor) -> None:
        """Take one step down the loss."""
        self.optimiser.zero_grad()
        self.loss(self.model.train()(x)).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.optimiser.zero_grad()

    def travels(self, name: str) -> bool:
        """Everything is sent."""
        return not name.endswith("num_batches_tracked")


class TentClient(PlainClient):
    """tent: one step of Adam on scales and shifts; statistics of the batch, now and when predicting."""

    momentum = 0.0

    def __init__(self, source: nn.Module, published: bool = False) -> None:
        super().__init__(source)
        self.model.requires_grad_(False)
        affine = [tensor.requires_grad_() for layer in norms(self.model) for tensor in (layer.weight, layer.bias)]
        self.optimiser = torch.optim.Adam(affine, lr=Tent.lr)
        self.names = _affine_names(self.model)

    def adapt(self, x: Tensor) -> None:
        """Take one step down the entropy."""
        mean_entropy(self.model.train()(x)).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.optimiser.zero_grad()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return logits with the statistics of the batch."""
        logits: Tensor = self.model.train()(x)
        return logits

    def travels(self, name: str) -> bool:
        """Scales and shifts are sent."""
        return name in self.names


def norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the BatchNorm layers."""
    return [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]


def _affine_names(model: nn.Module) -> set[str]:
    places = [name for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)]
    return {f"{place}.{kind}" for place in places for kind in ("weight", "bias")}
