"""How many images a client passes through the network in a round, counted by the arithmetic of one client.

One image passed is the arithmetic of one forward pass in convolutions and matrix products. A backward pass counts as
nearly two where it gives gradients of all weights and of inputs (grad), and as nearly one where weights are frozen and
it gives those of inputs alone (tent): nobody needs the gradient of the first layer's inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import aggregators
from fedctta.aggregators.fedctta import FedCTTA
from fedctta.bench.shapes import Shape, build_model, input_shape
from fedctta.core.clients import Client
from fedctta.core.network import Network


@cache
def count_passes(shape: Shape, adapter: str, aggregator: str, batch: int) -> int:
    """Return how many images a client passes through the network in a round: adapt, signal, probe, predict."""
    method, server = adapters.create(adapter), aggregators.create(aggregator)
    with torch.inference_mode(False), torch.enable_grad():  # as torch computes where it takes no shortcuts
        network = Network(build_model(shape), dense=shape.dense)
        x = torch.rand(batch, *input_shape(shape), generator=torch.Generator().manual_seed(0))
        plain = _count(lambda: network({}, x))
        client = method.init(network)
        work = _count(lambda: _live(method, network, client, x))
        asked = _count(lambda: server.signal(network, client, x)) if server.communicates else 0
    probe = server.count if isinstance(server, FedCTTA) and client.own else 0
    return round(batch * (work + asked) / plain) + probe


def _live(method: Adapter, network: Network, client: Client, x: Tensor) -> None:
    """Adapt and predict once."""
    if not method.waits:
        method.adapt_and_predict(network, client, x)
        return
    client = method.adapt(network, client, x)
    client = method.receive(network, client, x) if method.receives else client
    method.predict(network, client, x)


def _count(work: Callable[[], Any]) -> int:
    """Return the floating-point operations of convolutions and matrix products."""
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _backward}) as counter:
        work()
    return int(counter.get_total_flops())


def _backward(outgoing: Any, x: Any, kernel: Any, *others: Any, **_: Any) -> int:
    """Each gradient of a convolution, of its inputs and of its kernel, costs as much as the forward pass.

    Torch's own count takes a grouped convolution (a depthwise one) for a full one. The first three are shapes.
    """
    transposed, wanted = others[-4], others[-1]
    gradients = int(wanted[0]) + int(wanted[1])
    return int(conv_flop_count(x, kernel, outgoing, transposed)) * gradients
