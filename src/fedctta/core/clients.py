"""N clients as one stack of tensors, and how a function of one client becomes a function of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from fedctta.core.memory_layout import room_for
from fedctta.core.network import Network, Tensors
from fedctta.keys import Lift

Lifter = Callable[[Callable[..., Any]], Callable[..., Any]]


class Client(NamedTuple):
    """The state of one client, or of N clients when every tensor carries a leading client axis.

    `own` is the client's part of the model: it is what travels to the server and back. `private` never leaves the
    client (optimiser moments, memories).
    """

    own: Tensors
    private: Tensors = {}  # never changed in place


def stack(client: Client, count: int) -> Client:
    """Return `count` equal clients."""
    clients: Client = tree_map(lambda t: _repeated(t, count), client)
    return clients


def _repeated(tensor: Tensor, count: int) -> Tensor:
    """Repeat a tensor along a new axis, always in the same memory order.

    Kernels of convolutions keep channels last, as images do: with this order cuDNN is up to three times as fast where a
    convolution has one group per client, and oneDNN up to twice for one client.
    """
    if tensor.dim() == 4:
        last = tensor.permute(0, 2, 3, 1)
        return last.expand(count, *last.shape).contiguous().permute(0, 1, 4, 2, 3)
    return tensor.expand(count, *tensor.shape).contiguous()


def take(clients: Client, who: Tensor | slice) -> Client:
    """Return the clients with the given indices; the slice `:` is everybody, without a copy."""
    chosen: Client = tree_map(lambda t: t[who], clients)
    return chosen


def put(clients: Client, who: Tensor | slice, changed: Client) -> Client:
    """Return all clients, with those at the given indices replaced."""
    if isinstance(who, slice):
        return changed
    everybody: Client = tree_map(lambda t, new: t.index_copy(0, who, new), clients, changed)
    return everybody


def by_vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lift with `torch.func.vmap`: what clients share is computed once, convolutions run over all images at once."""
    return torch.func.vmap(function)


@dataclass(frozen=True)
class InChunks:
    """Lift with vmap, `clients` clients at a time. Results keep their memory order: see `_repeated`.

    With `in_place`, clients that a function returns take the place of those it was given, row by row: a federation of
    which two copies do not fit into memory has one. What was given is then gone.
    """

    clients: int
    each: Lifter = by_vmap  # of those at a time
    in_place: bool = False

    @property
    def __name__(self) -> str:
        """How clients are lifted, in words."""
        return f"by_vmap_{self.clients}_clients_at_a_time"

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Lift a function of one client."""
        return partial(self._call, self.each(function))

    def _call(self, few_at_once: Callable[..., Any], *arguments: Any) -> Any:
        leaves, spec = tree_flatten(arguments)
        count, results = len(leaves[0]), None
        if not count or (count <= self.clients and not self.in_place):
            return few_at_once(*arguments)
        for few in (slice(first, first + self.clients) for first in range(0, count, self.clients)):
            new = few_at_once(*tree_unflatten([leaf[few] for leaf in leaves], spec))
            if results is None:
                results = self._make_room(count, new, arguments[0])
                if not tree_leaves(results):  # nothing for anybody, as signals that no server asked for
                    break
            for rows, some in zip(tree_leaves(results), tree_leaves(new), strict=True):
                rows[few] = some
        return results

    def _make_room(self, count: int, rows: Any, given: Any) -> Any:
        """Return where the results of all clients go, for results like these `rows` of some."""
        if self.in_place and isinstance(rows, Client) and isinstance(given, Client) and _fit(rows, given):
            return Client(*({n: _part_rows(old[n]) for n in new} for new, old in zip(rows, given, strict=True)))
        if type(rows) is tuple:
            return tuple(self._make_room(count, part, given) for part in rows)
        return tree_map(partial(room_for, count), rows)


def _fit(rows: Client, clients: Client) -> bool:
    """Whether rows of some clients can take the place of theirs among those of all."""
    return all(
        new.keys() == old.keys() and all(new[n].shape[1:] == old[n].shape[1:] for n in new)
        for new, old in zip(rows, clients, strict=True)
    )


def _part_rows(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if all its rows are the same memory (a mean that all received)."""
    return tensor if tensor.stride(0) else tensor.contiguous()


def by_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lift with a plain loop: slower, and the reference to compare with."""

    def lifted(*arguments: Any) -> Any:
        leaves, spec = tree_flatten(arguments)
        if not len(leaves[0]):  # only vmap knows what a function would give that is never called
            return by_vmap(function)(*arguments)
        results = [function(*tree_unflatten([leaf[i] for leaf in leaves], spec)) for i in range(len(leaves[0]))]
        return tree_map(lambda *parts: torch.stack(parts), *results)

    return lifted


# How many images pass through a model at once. On a CPU, clients that own convolutions then fit into its cache; with
# shared convolutions, and on a GPU, the number limits the memory that gradients need.
CPU_OWN_WEIGHTS, CPU_SHARED_WEIGHTS, CUDA = 200, 500, 1_000


def choose_lift(how: Lift, network: Network, client: Client, batch: int, fit: int | None = None) -> Lifter:
    """Return the lifting to use: a loop if asked for, or vmap over as many clients at once as are fast and fit."""
    if how == "loop":
        return by_loop
    norm_tensors = {name for name in network.state if name.rpartition(".")[0] in network.norms}
    owns_weights = not client.own.keys() <= {*norm_tensors, *network.affine}
    images = CUDA if network.device.type == "cuda" else CPU_OWN_WEIGHTS if owns_weights else CPU_SHARED_WEIGHTS
    good = max(1, images // batch)
    return InChunks(good if fit is None else min(good, fit))
