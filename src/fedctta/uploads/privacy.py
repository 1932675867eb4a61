"""BatchNorm statistics that say little of any one image: bounded contributions, Gaussian noise, a stated budget.

At a layer whose source statistics are mu and s^2, let z = (x - mu) / s. Image b of the batch contributes, for each of C
channels, the means over its pixels of z and of z^2 - 1: a vector v_b of 2 C numbers, shortened to the length
R sqrt(2 C) if it is longer. The client releases

    r = (1/B) sum_b v_b + noise,     noise ~ N(0, (sigma D)^2) in every number,     D = 2 R sqrt(2 C) / B

as mean mu + s r_1 and variance s^2 (1 + r_2 - r_1^2), and normalises with these, so that what an image contributes to a
deeper layer depends on its own pixels and on what was released before, and on no other image. With one image replaced
by another, r moves by D at most. L layers with sigma = `noise` sqrt(L) each are together one Gaussian mechanism with
ratio 1 / `noise` of sensitivity to noise (Gaussian mechanisms compose exactly, adaptive ones too), hence (epsilon,
delta)-private for

    delta = Phi(m / 2 - epsilon / m) - e^epsilon Phi(-m / 2 - epsilon / m),   m = 1 / noise

(Balle and Wang 2018, Theorem 8), and T rounds that all hold the image for m = sqrt(T) / noise.

The simulation's noise comes from its seed, so that runs can be repeated. On a device it comes from the system
(`fleet.device.private_uploads`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import exp, inf, log, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.aggregators import Server
from fedctta.core.clients import Client, put
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, Statistics
from fedctta.core.randomness import fork, keys, normal
from fedctta.errors import UserError
from fedctta.keys import LEAST_DELTA, LEAST_EPSILON
from fedctta.uploads.stages import Transit

Draw = Callable[[int, torch.Size], Tensor]
RADIUS = 1.0  # R: on CIFAR-10-C half of all images stay within 0.5 at most layers and nine in ten within 1
LEAST_VARIANCE = 0.1  # of the source's: noise may carry a variance below zero


def delta_of(epsilon: float, ratio: float) -> float:
    """The smallest delta for which Gaussian noise is (epsilon, delta)-private; `ratio` is sensitivity / deviation."""
    if ratio == 0:
        return 0.0
    from scipy.special import log_ndtr, ndtr  # to load scipy takes longer than a run without noise needs to begin

    second = epsilon + float(log_ndtr(-ratio / 2 - epsilon / ratio))  # as a logarithm: e^epsilon alone overflows
    return max(0.0, float(ndtr(ratio / 2 - epsilon / ratio)) - exp(min(second, 0.0)))


def epsilon_of(ratio: float, delta: float) -> float:
    """The smallest epsilon for a delta, undoing `delta_of`."""
    if delta_of(0.0, ratio) <= delta:
        return 0.0
    most = 1.0
    while delta_of(most, ratio) > delta:
        most *= 2
        if most > 1e9:
            return inf
    from scipy.optimize import brentq

    return float(brentq(lambda epsilon: delta_of(epsilon, ratio) - delta, 0.0, most))


def noise_for(epsilon: float, delta: float) -> float:
    """The least noise, in sensitivities, that is (epsilon, delta)-private; exact from the least of both on."""
    low = high = 1.0
    while delta_of(epsilon, high) < delta:
        high *= 2
    while delta_of(epsilon, low) > delta:
        low /= 2
    # by its logarithm, so that a small ratio is as exact as a large one
    from scipy.optimize import brentq

    return exp(-float(brentq(lambda u: delta_of(epsilon, exp(u)) - delta, log(low), log(high), xtol=1e-12)))


def check_budget(epsilon: float | None, delta: float) -> None:
    """Raise a UserError for a budget that cannot be kept or computed."""
    if epsilon is not None and not LEAST_EPSILON <= epsilon < inf:
        raise UserError(f"epsilon={epsilon} must be at least {LEAST_EPSILON}, say 8; leave it out for no noise")
    if not LEAST_DELTA <= delta < 1:
        raise UserError(f"delta={delta} must lie between 0 and 1, well below 1 / images, say 1e-5")


@dataclass(frozen=True)
class Noise:
    """Noise on uploaded statistics: its standard deviation over the sensitivity of a whole upload."""

    noise: float
    radius: float = RADIUS
    purpose: ClassVar[int] = 0x9015E  # keeps this chance apart from all other of the same seed

    def handle(self, server: Server, transit: Transit) -> Transit:
        """Let the present clients upload noisy statistics of their batches instead of their own tensors."""
        assert transit.x is not None
        chance = fork(fork(keys(server.seed, server.clients, transit.x.device), self.purpose), transit.t)
        released = server.lift(partial(self.release, server.network))(chance[transit.who], transit.x)
        shared = transit.uploads.own
        noisy = put(Client(shared), transit.who, Client({name: released[name] for name in shared})).own
        return transit._replace(uploads=transit.uploads._replace(own=noisy))

    def release(self, network: Network, key: Tensor, x: Tensor) -> Tensors:
        """Return the statistics of a client's batch x[B, ...] to upload. Pure; `key` is new in every round."""
        return self.release_with(network, lambda layer, shape: normal(fork(key, layer), shape), x)

    def release_with(self, network: Network, draw: Draw, x: Tensor) -> Tensors:
        """Return the same with chance from elsewhere: `draw` gives the standard normal numbers of a layer."""
        return network({}, x, self._rule(network, draw)).statistics

    def _rule(self, network: Network, draw: Draw) -> NormRule:
        sigma = self.noise * sqrt(len(network.norms))
        released: set[str] = set()

        def rule(name: str, x: Tensor, source: Statistics) -> tuple[Statistics, Statistics]:
            if name in released:
                raise UserError(f"layer {name!r} is called twice, and noise covers one call: drop epsilon and noise")
            released.add(name)
            moments = contributions(x, source, self.radius).mean(0)
            sensitivity = 2 * self.radius * sqrt(moments.numel()) / len(x)
            chance = draw(network.norms.index(name), moments.shape)
            noisy = statistics_of(moments + sigma * sensitivity * chance, source)
            return noisy, noisy

        return rule

    def spent(self, delta: float, rounds: int) -> dict[str, float]:
        """Return what is guaranteed: for an image in one upload, and for one that is in every upload."""
        if not self.noise:
            return {"noise": 0.0, "delta": delta}  # clipped, and not private
        once, always = epsilon_of(1 / self.noise, delta), epsilon_of(sqrt(rounds) / self.noise, delta)
        return {"noise": self.noise, "delta": delta, "epsilon": once, "epsilon_all_rounds": always}


def spent_in_all(noise: float, delta: float) -> dict[str, float]:
    """Return what is guaranteed for an image where `noise` is in sensitivities of all that is ever sent of it."""
    told = {"noise": noise, "delta": delta}
    return told | {"epsilon": epsilon_of(1 / noise, delta)} if noise else told


def contributions(x: Tensor, source: Statistics, radius: float) -> Tensor:
    """v[B, 2, C] of every image of x[B, C, ...], none longer than radius sqrt(2 C)."""
    over, wide = tuple(range(2, x.dim())), (-1,) + (1,) * (x.dim() - 2)
    z = (x - source.mean.view(wide)) / source.var.clamp_min(1e-12).sqrt().view(wide)
    first, second = (z.mean(over), z.square().mean(over)) if over else (z, z.square())
    v = torch.stack([first, second - 1], 1)
    longest = radius * sqrt(v[0].numel())
    length = v.square().sum((1, 2), keepdim=True).sqrt()
    return v * (longest / length.clamp_min(longest))


def statistics_of(moments: Tensor, source: Statistics) -> Statistics:
    """Undo the scaling of moments[2, C]."""
    first, second = moments
    share = (1 + second - first.square()).clamp_min(LEAST_VARIANCE)
    return Statistics(source.mean + source.var.sqrt() * first, source.var * share)
