"""Say in plain words whether a model and images fit each other, and which adapters would work on them.

Normalisation is checked by the model's own memory. BatchNorm layers store the mean m and variance v that their inputs
had in training. For images like those of training, the means m' and variances v' of a batch are near them:

    misfit = mean over channels of the first layers of  1/2 ((m' - m)^2 / v + v' / v - 1 - log(v' / v))

which is the divergence of one Gaussian from the other. If another usual scaling of the images fits far better, it is
named. If none does and the misfit is large, the mean and deviation that every channel should have are found by gradient
descent on the misfit. Shifts of domains make it large too, though less: under each of the 15 corruptions of shapes-c it
lies below 0.6, and above 4 if clean images are normalised in vain with the numbers of CIFAR-10, ImageNet or MNIST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedctta.adapters import Adapter, adapters
from fedctta.core.network import Network
from fedctta.core.norm_layers import normalises
from fedctta.core.norms import Statistics, batch_statistics
from fedctta.data.domains import numbered
from fedctta.errors import UserError
from fedctta.models.try_on import refuse_regression, try_on
from fedctta.online.first_batch import check_first_batch
from fedctta.runs.source_models import CLASSES

FIRST_LAYERS = 3
FAR = 3.0  # times: a scaling that fits so much better is told
LARGE, STRANGE = 1.0, 0.3  # misfits that mean a wrong scaling, and those that may
STEPS, RATE, FITTED = 60, 0.1, 16  # of the descent, and how many images it uses
REPEATS = 5
PATIENCE = 1.0  # seconds per adapter
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

Level = Literal["fine", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what was found."""

    about: str
    level: Level
    text: str


@dataclass(frozen=True)
class Fit:
    """Whether an adapter works on the model: the reason if not, else its cost as a multiple of plain inference."""

    name: str
    refusal: str
    cost: float


def examine(network: Network, x: Tensor, labels: Tensor | None = None, classes: tuple[str, ...] = ()) -> list[Finding]:
    """Look at a model and a batch of images x[B, C, ...] as it gets them, of data with these classes if known."""
    found = list(_shape(network, x))
    if not x.isfinite().all():
        return [*found, Finding("images", "wrong", "images hold NaN or infinity: give finite values")]
    try:
        logits = try_on(network, x)
    except UserError as error:
        return [*found, *_range(x), Finding("model", "wrong", str(error))]
    scaling, expected = check_scaling(network, x)
    found.extend([*_range(x, expected), *_norms(network), *_output(logits, len(x), labels, classes), scaling])
    return found


def try_adapters(network: Network, x: Tensor, source_images: Tensor) -> list[Fit]:
    """Try every adapter with its default parameters on one batch; the cheapest first, those that refuse last."""
    tried = (_try(adapter, network, x, source_images) for adapter in adapters.usual().values())
    return sorted(tried, key=lambda fit: (fit.cost, fit.name))


class _Enough(Exception):
    """The first layers have been seen."""


def misfit(network: Network, x: Tensor) -> Tensor:
    """Return how far the first BatchNorm layers' inputs are from those of training; 0: no difference."""
    seen: list[Tensor] = []

    def rule(name: str, inputs: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
        now, var = batch_statistics(inputs), old.var.clamp_min(1e-8)
        ratio = (now.var / var).clamp_min(1e-8)
        seen.append(((now.mean - old.mean).square() / var + ratio - 1 - ratio.log()).mean() / 2)
        if len(seen) == FIRST_LAYERS:
            raise _Enough
        return old, old

    with suppress(_Enough):
        network({}, x, rule)
    return torch.stack(seen).mean()


def fit_channels(network: Network, x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the mean[C] and deviation[C] of channels that fit the stored statistics best, and the misfit then."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean, std = (_beside(value, x) for value in (x.mean(axes), x.std(axes).clamp_min(1e-6)))
    plain = (x - mean) / std
    shift, size = mean.clone().requires_grad_(), std.log().requires_grad_()
    steps = torch.optim.Adam([shift, size], RATE)
    for _ in range(STEPS):
        steps.zero_grad()
        with torch.enable_grad():
            loss = misfit(network, plain * size.exp() + shift)
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()
    return shift.detach().flatten(), size.detach().exp().flatten(), float(loss.detach())


def scalings(channels: int) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return usual scalings of images in [0, 1], and what undoes them, by what to do."""
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "multiply by 255": lambda x: 255 * x,
        "divide by 255": lambda x: x / 255,
    }
    if channels == 3:
        for name, known in {"ImageNet's mean and std": IMAGENET, "mean 0.5 and std 0.5": HALVES}.items():
            ways[f"normalise with {name}"] = partial(_normalise, known)
            ways[f"do not normalise with {name}, the model or the data have done it"] = partial(_undo, known)
        ways["swap red and blue"] = lambda x: x.flip(1)
    return ways


def _normalise(known: tuple[Sequence[float], Sequence[float]], x: Tensor) -> Tensor:
    mean, std = (_beside(x.new_tensor(values), x) for values in known)
    return (x - mean) / std


def _undo(known: tuple[Sequence[float], Sequence[float]], x: Tensor) -> Tensor:
    mean, std = (_beside(x.new_tensor(values), x) for values in known)
    return x * std + mean


def _beside(values: Tensor, x: Tensor) -> Tensor:
    """Return values[C] in a shape that goes with x[B, C, ...]."""
    return values.view(-1, *[1] * (x.dim() - 2))


def check_scaling(network: Network, x: Tensor) -> tuple[Finding, str]:
    """Return whether images are scaled as in training, and which values the stored statistics expect."""
    if not network.norms:
        said = "cannot be checked: the model stores no statistics of its training"
        return Finding("normalisation", "note", said), ""
    with torch.no_grad():
        here = float(misfit(network, x))
        others = {name: float(misfit(network, scale(x))) for name, scale in scalings(x.shape[1]).items()}
    if not isfinite(here):
        said = "cannot be checked: what the first layers get is not finite"
        return Finding("normalisation", "wrong", said), ""
    best = min(others, key=lambda name: others[name])
    if here > FAR * others[best] and here > 0.1:
        low, high = torch.aminmax(scalings(x.shape[1])[best](x))
        said = f"looks wrong: {best} (misfit {others[best]:.2f} with it, {here:.2f} as it is)"
        return Finding("normalisation", "wrong", said), f"{low:.3g} to {high:.3g}"
    if here > STRANGE:
        mean, std, fitted = fit_channels(network, x[:FITTED])
        if here > FAR * fitted:
            wanted = f"means {_numbers(mean)} and deviations {_numbers(std)}"
            why = "looks wrong" if here > LARGE else "may be wrong, or the images differ from those of training"
            said = f"{why}: channels with {wanted} would fit (misfit {fitted:.2f} with them, {here:.2f} as they are)"
            return Finding("normalisation", "wrong" if here > LARGE else "note", said), f"channels with {wanted}"
    return Finding("normalisation", "fine", f"fits the stored statistics best as it is (misfit {here:.2f})"), "such"


def _numbers(values: Tensor) -> str:
    return " ".join(f"{value:.2g}" for value in values.tolist())


def _shape(network: Network, x: Tensor) -> Iterator[Finding]:
    first = next((m for m in network.module.modules() if isinstance(m, nn.modules.conv._ConvNd | nn.Linear)), None)
    if first is None:
        return
    wanted, found = (first.in_channels if isinstance(first, nn.modules.conv._ConvNd) else first.in_features), x.shape[1]
    said = f"{_form(x)}; the first layer takes {wanted} channels"
    yield Finding("input", "fine" if wanted == found or isinstance(first, nn.Linear) else "wrong", said)


def _range(x: Tensor, expected: str = "") -> Iterator[Finding]:
    low, high = (float(value) for value in torch.aminmax(x))
    usual = low > -10 and high < 10 and low < high
    said = f"values from {low:.3g} to {high:.3g}, mean {float(x.mean()):.3g}"
    said += f"; the stored statistics expect {expected}" if expected else "; what the model expects is not known"
    yield Finding("range", "fine" if usual else "wrong", said)


def _norms(network: Network) -> Iterator[Finding]:
    kinds = Counter(type(layer).__name__ for layer in network.module.modules() if normalises(layer))
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"
    yield Finding("norm layers", "fine" if kinds else "note", said)


def _output(logits: Tensor, count: int, labels: Tensor | None, classes: tuple[str, ...]) -> Iterator[Finding]:
    try:
        refuse_regression(logits)
    except UserError as error:
        yield Finding("output", "wrong", str(error))
        return
    if logits.dim() != 2 or len(logits) != count:
        yield Finding("output", "wrong", f"{list(logits.shape)}: give one logit per class, [{count}, classes]")
        return
    counted, gives = classes == numbered(len(classes)), logits.shape[1]
    if classes and (gives < len(classes) or (gives > len(classes) and not counted)):
        yield Finding("output", "wrong", f"{gives} outputs, and the classes of the data are {len(classes)}: {CLASSES}")
        return
    if not logits.isfinite().all():
        yield Finding("output", "wrong", "logits are NaN or infinite: check the model and its weights")
        return
    shares = logits.softmax(1)
    top = torch.bincount(shares.argmax(1), minlength=logits.shape[1]).max().item() / len(logits)
    said = (
        f"{logits.shape[1]} classes; mean confidence {float(shares.amax(1).mean()):.2f}, most frequent class {top:.0%}"
    )
    yield Finding("output", "note" if top > 0.9 and len(logits) >= 20 else "fine", said)
    if labels is not None:
        accuracy = float((logits.argmax(1) == labels.to(logits.device)).float().mean())
        yield Finding("accuracy", "fine", f"{accuracy:.1%} without adaptation, of {len(labels)} images")


def _try(adapter: Adapter, network: Network, x: Tensor, source_images: Tensor) -> Fit:
    def adapt() -> Any:  # as `fedctta.adapt` does
        return adapter.adapt_and_predict(network, client, x)

    try:
        with torch.no_grad():
            check_first_batch(network, adapter, x)
            adapter.check(network, len(x))
            client = adapter.init(network)
            if adapter.source_images:
                learnt = adapter.study(network, source_images[: adapter.source_images], len(x))
                client = client._replace(private={**client.private, **learnt})
            return Fit(adapter.name, "", compare_cost(adapt, lambda: network({}, x)))
    except UserError as error:
        return Fit(adapter.name, str(error), float("inf"))
    except RuntimeError as error:
        return Fit(adapter.name, str(error).strip().splitlines()[0], float("inf"))


def compare_cost(work: Callable[[], Any], plain: Callable[[], Any]) -> float:
    """Return how many times as long as `plain` some work takes, each at its quickest, after both were done once.

    They are timed in turns, so that a busy machine slows both alike, and no longer than `PATIENCE` seconds.
    """
    took: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        until = perf_counter() + PATIENCE
        work(), plain()
        while len(took[0]) < REPEATS and (not took[0] or perf_counter() < until):
            for one, seconds in zip((work, plain), took, strict=True):
                began = perf_counter()
                one()
                seconds.append(perf_counter() - began)
    return min(took[0]) / min(took[1])


def _form(x: Tensor) -> str:
    sizes: Sequence[int] = x.shape[1:]
    return "x".join(map(str, sizes))
