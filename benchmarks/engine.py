"""What the engine costs over plain inference, and what it saves over a loop; and that memory does not grow.

    python benchmarks/engine.py [--rounds 30] [--repeats 5] [--adapter bn] [--device auto] [--memory-rounds 700]

One run prints, for every aggregator, seconds per round of

(a) plain inference: the source model in evaluation mode on as many images as a round passes through the network,
(b) our round: read, adapt, upload, aggregate, download, predict, record,
(c) the straightforward way to do the same work: one model object a client, a Python loop over them, state dicts
    averaged by name,

each the median over interleaved repeats, so that a busy machine slows all three alike.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedctta.adapters import adapters
from fedctta.adapters.grad import mean_entropy
from fedctta.aggregators import Server, aggregators
from fedctta.aggregators.fedctta import SAMPLES
from fedctta.core.clients import choose_lift
from fedctta.core.network import Network
from fedctta.data.corrupted import Domains
from fedctta.engine.rounds import Federation
from fedctta.engine.simulation import simulate
from fedctta.machine import arithmetic, choose_device, peak_memory_mb, reset_peak_memory
from fedctta.models.inputs import to_input
from fedctta.models.zoo import load_model
from fedctta.streams import Stream, build
from fedctta.streams.clusters import NIID

CLIENTS, BATCH = 20, 10
PASSES = {"bn": 2, "grad": 4}  # forward passes a round and image; a backward pass counts as two


def random_stream(rounds: int) -> Stream:
    """Pixels do not matter for speed: 5 domains of random images."""
    random = np.random.default_rng(0)
    slots = -(-rounds // 5)
    count = CLIENTS * slots * BATCH
    pool = random.integers(0, 256, (2000, 32, 32, 3), dtype=np.uint8)
    names = tuple(f"domain{k}" for k in range(5))
    images = pool[random.integers(0, len(pool), count)]
    labels = random.integers(0, 10, count)
    data = Domains(names, dict.fromkeys(names, images), labels, tuple("0123456789"), ())
    stream = build(NIID(clusters=4), data, CLIENTS, slots, BATCH, seed=0)
    return Stream(data, stream.domain[:rounds], stream.samples, stream.visit[:rounds])


def federation(module: nn.Module, adapter: str, aggregator: str, device: torch.device) -> Federation:
    network, method = Network(module, device), adapters.create(adapter)
    lift = choose_lift("auto", network, method.init(network), BATCH)
    server = Server(network, lift, 0, (3, 32, 32), CLIENTS, lambda count: torch.zeros(count, 3, 32, 32))
    return Federation(method, aggregators.create(aggregator), server)


@torch.no_grad()
def plain(module: nn.Module, stream: Stream, device: torch.device, passes: int) -> None:
    for t in range(len(stream)):
        x = to_input(stream.slot(t).images, device).flatten(0, 1)
        for _ in range(passes):
            module(x).argmax(1).cpu()


def loop(module: nn.Module, stream: Stream, device: torch.device, adapter: str, aggregator: str) -> None:
    """Do the same work with one model object a client, the way a first version is written."""
    models = [copy.deepcopy(module) for _ in range(CLIENTS)]
    probe = torch.rand(SAMPLES["paper"], 3, 32, 32, device=device)
    for model in models:
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = 1.0 if adapter == "bn" else 0.1
    for t in range(len(stream)):
        slot = stream.slot(t)
        x = to_input(slot.images, device)
        for model, batch in zip(models, x, strict=True):
            model.train()
            with torch.set_grad_enabled(adapter == "grad"):
                logits = model(batch)
            if adapter == "grad":
                model.zero_grad()
                mean_entropy(logits).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 1e-5 * parameter.grad
        with torch.no_grad():
            if aggregator != "local":
                average(models, aggregator, probe, torch.from_numpy(slot.domain).to(device), adapter)
            for model, batch in zip(models, x, strict=True):
                model.eval()(batch).argmax(1).cpu()


def average(models: list[nn.Module], aggregator: str, probe: Tensor, domain: Tensor, adapter: str) -> None:
    """Give every model its weighted average of all, tensor by tensor (statistics only for bn)."""
    states = [model.state_dict() for model in models]
    names = [n for n in states[0] if "running" in n or (adapter == "grad" and "num_batches" not in n)]
    stacks = {name: torch.stack([state[name] for state in states]) for name in names}
    if aggregator == "fedavg":
        mean = {name: tensor.mean(0) for name, tensor in stacks.items()}
        for model in models:
            model.load_state_dict(mean, strict=False)
        return
    if aggregator == "fedctta":
        answers = torch.stack([model.eval()(probe).mean(0) for model in models])
        weights = (-torch.cdist(answers, answers)).softmax(1)
    else:
        same = (domain[:, None] == domain).float()
        weights = same / same.sum(1, keepdim=True)
    for model, row in zip(models, weights, strict=True):
        model.load_state_dict({n: torch.tensordot(row, t, 1) for n, t in stacks.items()}, strict=False)


def seconds(action: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--adapter", choices=list(PASSES), default="bn")
    parser.add_argument("--aggregators", default="local,fedavg,fedctta,oracle")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memory-rounds", type=int, default=700)
    options = parser.parse_args()
    device = choose_device(options.device)
    names = options.aggregators.split(",")
    source = load_model("resnet8", "cifar10")
    module = copy.deepcopy(source).to(device=device, memory_format=torch.channels_last)
    stream, passes = random_stream(options.rounds), PASSES[options.adapter]
    ours = {name: federation(source, options.adapter, name, device) for name in names}
    start = copy.deepcopy(source).to(device)
    ways: dict[str, Callable[[], object]] = {"a": partial(plain, module, stream, device, passes)}
    for name in names:
        ways[f"b {name}"] = partial(simulate, ours[name], stream)
        ways[f"c {name}"] = partial(loop, start, stream, device, options.adapter, name)
    took: dict[str, list[float]] = {name: [] for name in ways}
    with arithmetic():
        for repeat in range(options.repeats + 1):
            for name, way in ways.items():
                spent = seconds(way, device) / len(stream)
                if repeat:  # the first is for warming up
                    took[name].append(spent)
        ms = {name: 1000 * statistics.median(times) for name, times in took.items()}
        print(f"ResNet-8, {CLIENTS} clients, batch {BATCH}, {options.adapter}, {device}; milliseconds per round")
        print(f"(a) plain inference, {passes * CLIENTS * BATCH} image passes: {ms['a']:.1f}")
        print(f"{'aggregator':12}{'(b) ours':>10}{'(c) loop':>10}{'(b) / (a)':>11}{'(c) / (b)':>11}")
        for name in names:
            b, c = ms[f"b {name}"], ms[f"c {name}"]
            print(f"{name:12}{b:10.1f}{c:10.1f}{b / ms['a']:11.2f}{c / b:11.2f}")
        if options.memory_rounds:
            memory(ours["fedctta" if "fedctta" in ours else names[0]], options.memory_rounds, device)


def memory(one: Federation, rounds: int, device: torch.device) -> None:
    """Print peak memory early and late in one long run."""
    peaks = {}
    reset_peak_memory(device)

    def note(t: int, _: object) -> None:
        if t + 1 in (min(100, rounds // 7), rounds):
            peaks[t + 1] = peak_memory_mb(device)

    simulate(one, random_stream(rounds), on_round=note)
    (early, first), (late, last) = peaks.items()
    print(
        f"peak memory after {early} rounds {first:.0f} MB, after {late} rounds {last:.0f} MB: {last / first - 1:+.2%}"
    )


if __name__ == "__main__":
    main()
