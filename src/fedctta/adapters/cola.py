"""CoLA: devices share what they have learnt for every domain, and learn how to mix it (Chen et al., NeurIPS 2024).

A domain vector v_i is what scales and shifts of normalisation layers have learnt in one domain, less the source's,
kept with the domain's early features (`early_features`: mean and variance). A *principal* learns by gradients

    theta = source + sum_i softmax(s alpha)_i v_i + epsilon

where alpha, s and epsilon follow the loss of a base method (Tent, ETA, EATA or SAR; `mixtures` has the gradients), and
entry 0 is the source with v_0 = 0. The features of a stay are a moving average, 0.8 old + 0.2 batch. A batch further
than `threshold` from it (`early_features`: distance) is of a new domain: theta - source is stored as a vector with the
stay's features, its alpha follows Eq. 8 (`mixtures`: weigh_new), epsilon is offset so that theta does not jump, and a
new stay begins. A *follower* has no gradients. It mixes the vectors that others have stored, by how near their domains
are to the average features d of its own batches:

    theta = source + sum_i softmax(1 / (T (distance(d, d_i) + 1e-4)))_i v_i

As theta never jumps, epsilon is not stored: it is theta - source - sum_i softmax(s alpha)_i v_i at any time.

Constants are those of the published code: alpha and s take steps of AdamW (0.1, decay 0.1 and 0.01) whose moments start
anew in every step, which makes them steps by sign; epsilon those of SGD (0.001, momentum 0.9, `decay` 0; 0.4 with ETA
and 0.1 with SAR where one device learns alone). That code

- detects shifts only in batches of at least 64 images. Here `least` images are enough; it also offers to store a
  vector after every so many batches instead (`every`, 100 there, 10 within one domain);
- keeps all vectors, or 32 in one domain, of which that of the least alpha leaves. Here `vectors` are kept of one's
  own that the server does not have, and `vectors` of the server's;
- gives received vectors a random alpha (`spread` times standard normal), starts alpha of the source at random (here at
  0), and at an exchange stores and shares the weights of that moment too (`offer`);
- predicts before the step, and a follower before it looks at the batch: that is `predict=before`.

The paper adapts LayerNorm only. BatchNorm layers normalise with the batch's statistics as Tent does, or with
`statistics` source, or moving (a moving average with `momentum`, as `bn` has it). With `role=mixed` a client is a
follower with probability `followers`. Without a server, a follower is the source model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.early_features import count_channels, distance, early_statistics
from fedctta.adapters.common.inner import METHODS
from fedctta.adapters.common.mixtures import combine, find_slopes, step_sign, weigh, weigh_by_distance, weigh_new
from fedctta.adapters.common.needs import Need
from fedctta.adapters.tent import require_batch, trained
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, Statistics, blend, refreshed, stored
from fedctta.core.outputs import count_rows
from fedctta.core.randomness import fork, name_of, normal, numbered, uniform
from fedctta.core.tensors import choose, lay_out, named, only, take_apart, under
from fedctta.errors import UserError
from fedctta.ranges import Count, CountOrZero, NotNegative, Positive, Share

SCALE_DECAY = 0.01  # AdamW's default
MOMENTUM = 0.9
ROLE, DRAW = 1, 2  # purposes of chance


@dataclass(frozen=True)
class CoLA(Adapter):
    """Store scales and shifts learnt per domain as vectors; learn how to mix them, or mix by similarity."""

    name: ClassVar[str] = "cola"
    title: ClassVar[str] = "CoLA"
    needs: ClassVar[tuple[Need, ...]] = ("affine", "gradients")
    single_images: ClassVar[bool] = False
    without_images: ClassVar[str] = "base=eta"
    role: Literal["principal", "follower", "mixed"] = "principal"
    followers: Share = 0.5
    base: Literal["tent", "eta", "eata", "sar"] = "tent"
    vectors: Count = 32
    lr: NotNegative = 1e-3
    decay: NotNegative = 0.0
    alpha_lr: NotNegative = 0.1
    alpha_decay: NotNegative = 0.1
    margin: Positive = 0.01  # w_m of Eq. 8
    threshold: NotNegative = 0.1
    least: Count = 2
    every: CountOrZero = 0
    keep: Share = 0.8
    temperature: Positive = 5.0
    spread: NotNegative = 1.0
    offer: bool = True
    statistics: Literal["batch", "source", "moving"] = "batch"
    momentum: Share = 0.1

    def init(self, network: Network) -> Client:
        """Own scales and shifts; vectors, their features and alpha are private."""
        own = METHODS[self.base].init(network).own
        source, device = lay_out(own), network.device
        rows, features = self.vectors, count_channels(network)
        zero, count = torch.zeros((), device=device), torch.zeros((), dtype=torch.int64, device=device)
        several = count.expand(rows).clone()
        set_of_vectors = {
            "vectors": source.new_zeros(rows, len(source)),
            "mean": source.new_zeros(rows, features),
            "var": source.new_ones(rows, features),
        }
        return Client(
            {**own, **(network.statistics if self.statistics == "moving" else {})},
            {
                **named("shared", {**set_of_vectors, "name": several}),  # 0: empty
                "taken": count,  # the serial number of the newest own vector that the server has
                **named("kept", {**set_of_vectors, "serial": several}),  # 2 b + 1 if stored at the start of batch b
                "offered": count,  # 2 b + 2: the number under which the server may take theta after batch b; 0: none
                "alpha": zero.expand(1 + 2 * rows).clone(),  # of the source, of shared vectors, of kept ones
                "weighed": several,  # the names of the shared vectors that alpha is for
                "scale": torch.ones_like(zero),
                "velocity": torch.zeros_like(source),
                **named("stay", {"mean": source.new_zeros(features), "var": source.new_ones(features)}),
                "stay.batches": count,
                "batches": count,
                "key": count,
                **named("base", METHODS[self.base].notes(network)),
            },
        )

    @property
    def source_images(self) -> int:
        """As many as the base method asks for."""
        return METHODS[self.base].source_images

    def study(self, network: Network, images: Tensor, batch: int) -> Tensors:
        """Return what the base method learns."""
        return named("base", METHODS[self.base].study(network, images, batch))

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Look for a shift, and store what is learnt there; then learn, or follow."""
        follows = self._follows(client)
        client = self._observe(network, client, x, ~follows)
        if self.role == "principal":
            return self._learn(network, client, x)
        own = self._follow(network, client)
        if self.statistics == "moving":
            own |= network(own, x, self._rule()).statistics
        followed = client._replace(own=own)
        if self.role == "follower":
            return followed
        learnt = self._learn(network, client, x)
        private = {name: tensor for name, tensor in learnt.private.items() if tensor is not client.private[name]}
        changed = choose(follows, only(private, client.private), private)
        return Client(choose(follows, followed.own, learnt.own), {**client.private, **changed})

    @property
    def receives(self) -> bool:
        """New vectors need an alpha, and followers mix them at once."""
        return True

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Give every received vector its alpha: the one it had, for one that is new a random one."""
        private, rows = client.private, self.vectors
        names, alpha = private["shared.name"], private["alpha"]
        known = torch.cat([private["weighed"], name_of(private["key"], private["kept.serial"])])
        same = (names[:, None] == known) & (names > 0)[:, None]
        had = (same * alpha[1:]).sum(1) / same.sum(1).clamp_min(1)
        drawn = self.spread * normal(numbered(fork(private["key"], DRAW), private["batches"]), (rows,))
        alpha = torch.cat([alpha[:1], torch.where(same.any(1), had, drawn * (names > 0)), alpha[1 + rows :]])
        private = private | {"alpha": alpha, "weighed": names}

        taken, offered = private["taken"], private["offered"]
        took = (taken == offered) & (offered > 0)  # the weights of this moment are among the vectors now
        here = F.pad((names == name_of(private["key"], taken)) & took, (1, rows))
        new = self._weigh_new(network, client._replace(private=private), self._there(private) & ~here)
        private |= {
            "alpha": torch.where(here, new, alpha),
            "stay.batches": torch.where(took, 0, private["stay.batches"]),
        }
        client = client._replace(private=private)
        if self.role == "principal":
            return client
        return client._replace(own=choose(self._follows(client), self._follow(network, client), client.own))

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K]; BatchNorm with the statistics of x, or with those held."""
        return network(client.own, x, refreshed() if self.statistics == "batch" else stored).logits

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K] of the pass that the update starts from."""
        return network(client.own, x, self._rule()).logits

    def predicts_alike(self, communicates: bool) -> bool:
        """Without a server, a follower has nothing to mix."""
        return self.role == "follower" and not communicates

    def check(self, network: Network, batch: int) -> None:
        """As the base method; batch statistics need more than one image."""
        for need in METHODS[self.base].needs:
            self.require(network, need)
        if self.statistics == "batch":
            require_batch(self.name, network, batch)
        elif not network.norms:
            raise UserError(f"cola.statistics={self.statistics} has no effect on a model without BatchNorm: drop it")
        if batch < self.least:
            raise UserError(
                f"cola.least={self.least} is above batch={batch}, so that no vector would be stored: lower it"
            )

    def _rule(self) -> NormRule:
        if self.statistics == "source":
            return stored
        return refreshed(1.0 if self.statistics == "batch" else self.momentum)

    def _follows(self, client: Client) -> Tensor:
        """Whether the client is a follower: a truth value."""
        share = {"principal": 0.0, "follower": 1.0, "mixed": self.followers}[self.role]
        return uniform(fork(client.private["key"], ROLE), ()) < share

    def _observe(self, network: Network, client: Client, x: Tensor, stores: Tensor) -> Client:
        """Compare the batch with the stay; store a vector where the domain has changed, and go on from there."""
        private = client.private
        if count_rows(x) < self.least:
            return client
        seen, stay = early_statistics(network, x), Statistics(private["stay.mean"], private["stay.var"])
        met = private["stay.batches"] > 0
        shifted = private["stay.batches"] >= self.every if self.every else distance(stay, seen) > self.threshold
        shifted = shifted & met & stores
        private = self._store(network, client, shifted)
        stay = blend(seen, stay, torch.where(met & ~shifted, self.keep, 0.0))
        batches = torch.where(shifted, 0, private["stay.batches"]) + 1
        count = private["batches"] + 1
        offered = torch.where(stores, 2 * count, 0) if self.offer else private["offered"]
        private |= {"stay.mean": stay.mean, "stay.var": stay.var, "stay.batches": batches}
        return client._replace(private=private | {"batches": count, "offered": offered})

    def _store(self, network: Network, client: Client, when: Tensor) -> Tensors:
        """Return the private tensors with theta - source stored as a vector, if `when` says so.

        It takes a place that is free, or that of the least alpha.
        """
        private, rows = client.private, self.vectors
        free = private["kept.serial"] <= private["taken"]
        place = torch.where(free, -torch.inf, private["alpha"][1 + rows :] * private["scale"]).argmin()
        here = (torch.arange(rows, device=when.device) == place) & when
        there = self._there(private)
        there = torch.cat([there[: 1 + rows], there[1 + rows :] & ~here])
        alpha = self._weigh_new(network, client, there)
        new = {
            "kept.vectors": self._offset(network, client),
            "kept.mean": private["stay.mean"],
            "kept.var": private["stay.var"],
            "kept.serial": 2 * private["batches"] + 1,
        }
        rows_now = {
            name: torch.where(here.view(-1, *[1] * value.dim()), value, private[name]) for name, value in new.items()
        }
        weights = torch.where(here, alpha, private["alpha"][1 + rows :])
        return private | rows_now | {"alpha": torch.cat([private["alpha"][: 1 + rows], weights])}

    def _learn(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take one step of epsilon, alpha and the scale."""
        base, private = METHODS[self.base], client.private
        slope = base.slope(network, Client(client.own, under("base", private)), x, self._rule())
        gradient, vectors = lay_out(slope.gradient), (private["shared.vectors"], private["kept.vectors"])
        alpha, scale, there = private["alpha"], private["scale"], self._there(private)
        weights = weigh(alpha, scale, there)
        epsilon = self._offset(network, client) - combine(weights, *vectors)
        velocity = MOMENTUM * private["velocity"] + gradient + self.decay * epsilon
        of_alpha, of_scale = find_slopes(gradient, weights, alpha, scale, *vectors)
        several = there[1:].any()
        alpha = torch.where(several, step_sign(alpha, of_alpha, self.alpha_lr, self.alpha_decay), alpha)
        scale = torch.where(several, step_sign(scale, of_scale, self.alpha_lr, SCALE_DECAY), scale)
        offset = combine(weigh(alpha, scale, there), *vectors) + epsilon - self.lr * velocity

        source = only(trained(network, client), network.state)
        own = {name: source[name] + change for name, change in take_apart(offset, source).items()}
        moved = choose(slope.some, {"velocity": velocity, "alpha": alpha, "scale": scale}, private)
        own, notes = choose(slope.some, own, client.own), slope.notes
        if slope.collapsed is not None:
            own = choose(slope.collapsed, source, own)
            notes = choose(slope.collapsed, base.notes(network), notes)
            moved["velocity"] = torch.where(slope.collapsed, 0, moved["velocity"])
        if self.statistics == "moving":
            own |= slope.statistics
        return Client({**client.own, **own}, {**private, **moved, **named("base", notes)})

    def _follow(self, network: Network, client: Client) -> Tensors:
        """Return the own tensors of a follower: a mixture of shared vectors by how near their domains are."""
        private = client.private
        features = Statistics(private["shared.mean"], private["shared.var"])
        apart = distance(features, Statistics(private["stay.mean"], private["stay.var"]))
        there = (private["shared.name"] > 0) & (private["stay.batches"] > 0)
        offset = weigh_by_distance(apart, there, self.temperature) @ private["shared.vectors"]
        source = only(trained(network, client), network.state)
        return client.own | {name: source[name] + change for name, change in take_apart(offset, source).items()}

    def _offset(self, network: Network, client: Client) -> Tensor:
        """Return theta - source[P]."""
        own = trained(network, client)
        return lay_out(own) - lay_out(only(own, network.state))

    def _there(self, private: Tensors) -> Tensor:
        """Return which entries count: the source, shared vectors, and kept ones that the server does not have."""
        mine = private["kept.serial"] > private["taken"]
        return torch.cat([torch.ones_like(mine[:1]), private["shared.name"] > 0, mine])

    def _weigh_new(self, network: Network, client: Client, there: Tensor) -> Tensor:
        """Return the alpha of theta - source as one more vector; epsilon's size is that of its largest tensor."""
        private = client.private
        weights = weigh(private["alpha"], private["scale"], there)
        epsilon = self._offset(network, client) - combine(weights, private["shared.vectors"], private["kept.vectors"])
        parts = take_apart(epsilon, trained(network, client)).values()
        size = torch.stack([part.abs().mean() for part in parts]).max()
        return weigh_new(private["alpha"], private["scale"], there, size, self.margin)
