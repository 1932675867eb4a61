"""FedTSA: a small attention block, trained by the server in every round, says who collaborates with whom.

Client i uploads the indicator p_i^t: the mean feature, over its batch of slot t, of the frozen source model. The server
keeps the last T slots of all clients, X, and trains a fresh TS-Block on them (`attention`, `training`):

    A_i^(T) = Q K^T / sqrt(D),  X^TA  = softmax(A_i^(T)) X          over the slots of a client    (Eq. 9-11)
    A_t^(S) = Q K^T / sqrt(D),  X^TSA = softmax(A_t^(S)) X^TA       over the clients of a slot    (Eq. 12-14)
    m_ij    = [cos(p_i^t, p_j^t) >= mean]                           who is alike now              (Eq. 15)
    X^TA'   = softmax(A^(T) * M^tem) X                              a random part masked          (Eq. 16)
    X^TSA'  = softmax(A^(S) * M^spa) X^TA'                                                        (Eq. 17)
    L       = ||X^TSA - X|| + lambda ||X^TSA - X^TSA'||                                           (Eq. 18)

and W = softmax(A_t^(S)) of the current slot, from the epoch with the lowest loss.

Where the paper leaves a choice or cannot be meant as printed:
- W is the softmax of A^(S): only that has the rows of Eq. 8. Probabilities a_ij are softmaxed for the same reason.
- Edges of Eq. 15 stay with probability a_ij and missing ones come with probability a_ij, so all pairs are drawn with
  a_ij and Eq. 15 has no effect. A client's tie to itself stays: the rule speaks of two clients.
- Eq. 17 computes A^(S) from X^TA', as SA(X^TA') says and the published code does.
- Products with a mask are taken literally: a masked score is 0, not excluded. Scores of 0 everywhere then satisfy the
  second term of Eq. 18, so that lambda = 1 draws W towards the uniform matrix; excluding does not.
- Norms are Frobenius norms. Epochs, and that the best one counts, are the published code's; so are layers with bias.

`variant=code` is the published code: masks of fixed size that exclude what they mask (`masks`), mean squared
errors, T = 5, lambda = 0.1, lr = 1e-4, where the paper has 10, 1 and 1e-3.

`variant=port` is FedTSA as the repository of FedCTTA has it, a baseline there: the same masks and loss with T = 10,
lambda = 0.5 and lr = 1e-4. Where clients own BatchNorm statistics only, it mixes what the block attends to over time in
place of the statistics of this slot, and where they own weights, what was uploaded:

    TTA-bn      s_i     <- sum_j W_ij sum_tau softmax(A_j^(T))_(t, tau) s_j^tau
    TTA-grad    theta_i <- sum_j W_ij theta_j

Its TTA-grad clients are those of `grad.variant=code`.

`window`, `lam` and `lr` overrule the variant's. Figure 3's ablations: `s-sim` is untrained attention over the clients
of this slot alone, `ts-sim` the untrained block, `no-time` leaves attention over time out and `no-aug` the masked pass.

A slot that a client misses is no key for anybody and no part of the loss. The server's memory is N T (D + 1) numbers;
`port` adds N T statistics of TTA-bn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.vectors import for_active, owns_weights
from fedctta.aggregators.fedtsa.captured_training import attend
from fedctta.aggregators.fedtsa.foresight import train_ahead
from fedctta.aggregators.fedtsa.training import Attended, Training
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.randomness import keys, numbered
from fedctta.errors import UserError
from fedctta.ranges import Count, NotNegative


class Constants(NamedTuple):
    """What paper, published code and its port set differently."""

    window: int
    lam: float
    lr: float


CONSTANTS = {"paper": Constants(10, 1.0, 1e-3), "code": Constants(5, 0.1, 1e-4), "port": Constants(10, 0.5, 1e-4)}


@dataclass(frozen=True)
class FedTSA(Aggregator):
    """Weight peers by an attention over time and clients that the server trains in every round."""

    name: ClassVar[str] = "fedtsa"
    title: ClassVar[str] = "FedTSA"
    variant: Literal["paper", "code", "port"] = "paper"
    ablation: Literal["none", "s-sim", "ts-sim", "no-time", "no-aug"] = "none"
    window: Count | None = None  # None: the variant's
    lam: NotNegative | None = None
    lr: NotNegative | None = None
    epochs: Count = 100

    @property
    def constants(self) -> Constants:
        """The variant's constants, overruled by those given."""
        window, lam, lr = CONSTANTS[self.variant]
        return Constants(
            window if self.window is None else self.window,
            lam if self.lam is None else self.lam,
            lr if self.lr is None else self.lr,
        )

    @property
    def training(self) -> Training:
        """How the block is trained. One epoch is the untrained block: W is taken before the step."""
        epochs, lam, lr = self.epochs, self.constants.lam, self.constants.lr
        if self.ablation in ("s-sim", "ts-sim"):
            epochs, lam = 1, 0.0
        elif self.ablation == "no-aug":
            lam = 0.0
        return Training(epochs, lr, lam, self.variant != "paper", self.ablation not in ("s-sim", "no-time"))

    @property
    def only_mixes(self) -> bool:
        """W comes of signals; the port remembers uploads."""
        return self.variant != "port"

    def init(self, server: Server) -> Tensors:
        """Start with round 0; the window follows with the first indicators."""
        if not server.network.has_features:
            raise UserError("fedtsa needs a model that ends in nn.Linear, for its features: use another aggregator")
        return {"round": torch.zeros((), dtype=torch.int64, device=server.network.device)}

    def foresee(self, server: Server, read: Callable[[int], Tensor], rounds: Sequence[int]) -> Tensors:
        """Train the blocks of many rounds at once: indicators are the source model's, and every block begins anew."""
        signal = server.lift(lambda x: self.signal(server.network, Client({}), x)["indicator"])
        key = keys(server.seed, 1, server.network.device)[0]
        trained = train_ahead(
            lambda some: signal(torch.cat([read(t) for t in some])),
            *(rounds, server.clients, self.constants.window, key, self.training),
        )
        return {} if trained is None else {"foreseen": trained.clients, "foreseen_slots": trained.slots}

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """p_i^t: the source model's mean feature on the client's batch."""
        return {"indicator": network({}, x).features.flatten(1).mean(0)}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Move the window on by this slot, train a block on it, take its attention over clients."""
        attended, memory = self.attend(server, uploads, memory)
        if self.variant == "port" and not owns_weights(server.network, uploads.own):
            memory = memory | {"over_slots": attended.slots}
            for name, tensor in uploads.own.items():
                newest = for_active(uploads.active, tensor, torch.zeros_like(tensor))
                empty = tensor.new_zeros(len(tensor), self.constants.window, *tensor.shape[1:])
                memory[f"past.{name}"] = slide(memory.get(f"past.{name}", empty), newest)
        return attended.clients, memory

    def attend(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Attended, Tensors]:
        """Return what the current slot attends to, and the memory with it in the window."""
        if "foreseen" in memory:
            t = memory["round"].reshape(1)
            now = (memory[name].index_select(0, t)[0] for name in ("foreseen", "foreseen_slots"))
            return Attended(*now), memory | {"round": memory["round"] + 1}
        indicator, active = uploads.signals["indicator"], uploads.active
        shape = (len(active), self.constants.window)
        x = memory.get("window", indicator.new_zeros(*shape, indicator.shape[-1]))
        known = memory.get("known", active.new_zeros(shape))
        x = slide(x, torch.where(active[:, None], indicator, 0))
        known = slide(known, active)

        key = numbered(keys(server.seed, 1, x.device)[0], memory["round"])
        memory = memory | {"window": x, "known": known, "round": memory["round"] + 1}
        return attend(x, known, key, self.training), memory

    def contribute(self, own: Tensors, active: Tensor, memory: Tensors) -> Tensors:
        """With variant=port and statistics only, return what every client's slots sum to under A^(T)."""
        if "over_slots" not in memory:
            return own
        mixed = {}
        for name, tensor in own.items():
            slots = torch.cat([memory[f"past.{name}"][:, :-1], tensor[:, None]], 1)
            mixed[name] = for_active(active, torch.einsum("nt,nt...->n...", memory["over_slots"], slots), tensor)
        return mixed


def slide(window: Tensor, newest: Tensor) -> Tensor:
    """Forget the oldest slot of window[N, T, ...] and append the newest."""
    return torch.cat([window[:, 1:], newest[:, None]], 1)
