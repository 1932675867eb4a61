"""The client of pFedBBN: balanced batch normalisation and distillation from confident predictions, after TRIBE.

Three networks share the frozen weights, and each has its own balanced statistics (see `balanced`): teacher and
student, whose scales and shifts are the same tensors, and the source with its own. A batch is labelled by the client's
model as it stands (stored statistics), then passes through all three, which move the statistics:

    L_KD = (1/B) sum_b [H(p_T) < H0 ln K] CE(arg-max p_T, p_S)                (Eq. 5)     teacher p_T, student p_S
    L_CR = (1/(B K)) sum_b || p_T - p_source ||^2                             (Eq. 6)

and Adam takes one step on L_KD + 0.5 L_CR. The teacher carries the gradient of L_CR. One of teacher and student sees an
augmented view: the student, as in TRIBE, or with `augment_teacher` the teacher, as in the paper's text (and in the
presets of its tables and figures). Scales, shifts and the balanced statistics of the one that saw the images themselves
are uploaded and used to predict; statistics of classes never leave the client.

The paper gives no constants. Those here are TRIBE's, for up to 10 classes and for more: eta 0.01 / 0.05, gamma 0 / 0.1,
H0 0.05 / 0.2. `variant=code` is TRIBE's code: both losses are means over the images that pass the filter, L_CR compares
logits, the variance between classes has divisor K - 1; nothing is learnt where nothing passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.augmentation import augment
from fedctta.adapters.common.balanced import balanced, source_buffers
from fedctta.adapters.common.losses import entropy
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam, adam_memory
from fedctta.core.clients import Client
from fedctta.core.network import Network, Output, Tensors
from fedctta.core.randomness import advance
from fedctta.core.tensors import choose, masked_mean, named, only, under
from fedctta.ranges import NotNegative, PositiveShare, Share

FEW_CLASSES = {"eta": 0.01, "gamma": 0.0, "threshold": 0.05}
MANY_CLASSES = {"eta": 0.05, "gamma": 0.1, "threshold": 0.2}


@dataclass(frozen=True)
class BalancedNorm(Adapter):
    """Balance BatchNorm statistics over classes and distil confident predictions (the client of pFedBBN)."""

    name: ClassVar[str] = "bbn"
    pictures: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("images", "batchnorm", "affine", "features", "gradients")
    lr: NotNegative = 1e-3
    eta: PositiveShare | None = None
    gamma: Share | None = None
    threshold: Share | None = None  # of ln K
    consistency: NotNegative = 0.5
    augment_teacher: bool = False
    variant: Literal["paper", "code"] = "paper"

    def init(self, network: Network) -> Client:
        """Own scales, shifts and statistics; Adam's memory and the statistics of classes are private."""
        affine = only(network.affine, network.state)
        buffers = source_buffers(network, _classes(network))
        private = {**adam_memory(affine), "key": torch.zeros((), dtype=torch.int64, device=network.device)}
        for who in ("teacher", "student", "source"):
            private |= named(who, buffers)
        return Client({**affine, **network.statistics}, private)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Move the statistics of all three networks and take one step on scales and shifts."""
        affine, private = only(network.affine, client.own), client.private
        view = augment(x, private["key"])
        to_teacher, to_student = (view, x) if self.augment_teacher else (x, view)
        classes = torch.arange(_classes(network), device=x.device)
        logits = network(client.own, x).logits
        labels = (logits.argmax(-1, keepdim=True) == classes).to(logits.dtype)
        limit = self._constant("threshold", network) * math.log(len(classes))

        def run(who: str, weights: Tensors, images: Tensor) -> tuple[Output, Tensors]:
            after: Tensors = {}
            eta, gamma = self._constant("eta", network), self._constant("gamma", network)
            rule = balanced(under(who, private), after, labels, eta, gamma, correction=int(self.variant == "code"))
            return network(weights, images, rule), named(who, after)

        def stay(weights: Tensors) -> tuple[Tensor, tuple[Output, Tensors]]:
            output, after = run("teacher", weights, to_teacher)
            confident = entropy(output.logits.detach()) < limit
            return self.consistency * self._drift(output.logits, source.logits, confident), (output, after)

        def learn(weights: Tensors) -> tuple[Tensor, tuple[Output, Tensors]]:
            output, after = run("student", weights, to_student)
            return self._distil(output.logits, teacher.logits.argmax(-1), passed), (output, after)

        # The two losses have no graph in common: one after the other they take half the memory of their sum.
        source, of_source = run("source", {}, x)
        pull, (teacher, of_teacher) = torch.func.grad(stay, has_aux=True)(affine)
        passed = entropy(teacher.logits) < limit
        push, (student, of_student) = torch.func.grad(learn, has_aux=True)(affine)
        weights, memory = adam(affine, {name: push[name] + pull[name] for name in affine}, private, self.lr)
        if self.variant == "code":
            weights, memory = choose(passed.any(), weights, affine), choose(passed.any(), memory, private)

        clean = student if self.augment_teacher else teacher
        memory = {**memory, **of_source, **of_teacher, **of_student, "key": advance(private["key"])}
        return Client({**weights, **clean.statistics}, {**private, **memory})

    def _constant(self, name: str, network: Network) -> float:
        value: float | None = getattr(self, name)
        return (FEW_CLASSES if _classes(network) <= 10 else MANY_CLASSES)[name] if value is None else value

    def _distil(self, logits: Tensor, target: Tensor, passed: Tensor) -> Tensor:
        """L_KD."""
        loss = F.cross_entropy(logits, target, reduction="none")
        return masked_mean(loss, passed) if self.variant == "code" else (loss * passed).mean()

    def _drift(self, logits: Tensor, anchor: Tensor, passed: Tensor) -> Tensor:
        """L_CR."""
        if self.variant == "code":
            return masked_mean(F.mse_loss(logits, anchor, reduction="none").mean(-1), passed)
        return F.mse_loss(logits.softmax(-1), anchor.softmax(-1))


def _classes(network: Network) -> int:
    return len(network.state[f"{network.classifier}.weight"])
