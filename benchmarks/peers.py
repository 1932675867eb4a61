"""The same task on this package, Flower's simulation engine, pfl-research, and as PFLlib does it: one table.

    python benchmarks/peers.py [--clients 20 200] [--out docs/results/peers.md] [--flower PYTHON] [--pfl PYTHON]

The task: clients adapt ResNet-8 to the same batches of CIFAR-10-C (TTA-bn: the statistics of the batch; Tent: one step
of Adam on scales and shifts), the server averages what they have changed, and all predict the same batches with the
average. Every peer plays in a process of its own, with as many threads or actors as `--cores`; peers take turns, and
the table shows the median round of all turns. Clients of the three peers are model objects changed by torch's own
tools (`fedctta.bench.plain_clients`); only ours are lifted. A peer that is not installed is left out, with a line that
says how to install it; `--flower` and `--pfl` name a Python that has it, if that is another one. The exit code is 1 if
an accuracy differs from ours by more than 0.1 points.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedctta.bench.plain_clients import PlainClient, StatisticsClient, TentClient, norms
from fedctta.core.network import Tensors
from fedctta.engine.simulation import simulate
from fedctta.files import whole
from fedctta.machine import choose_device, hardware
from fedctta.models.inputs import to_input
from fedctta.models.zoo import load_model
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single


class BatchStatistics(StatisticsClient):
    """TTA-bn with variances divided by n, as the method has them; torch's running variance is divided by n - 1."""

    def adapt(self, x: Tensor) -> None:
        """Refresh the statistics."""
        counts: dict[int, float] = {}
        layers = norms(self.model)

        def note(layer: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
            counts[id(layer)] = inputs[0].numel() / inputs[0].shape[1]

        hooks = [layer.register_forward_pre_hook(note) for layer in layers]
        super().adapt(x)
        for layer, hook in zip(layers, hooks, strict=True):
            hook.remove()
            layer.running_var *= 1 - 1 / counts[id(layer)]


METHODS: dict[str, type[PlainClient]] = {"bn": BatchStatistics, "tent": TentClient}
TITLES = {
    "fedctta": "fedctta",
    "pfllib": "loop of deep copies (PFLlib's way)",
    "pfl": "pfl-research",
    "flower": "Flower",
}
NEEDS = {"pfl": ("pfl", "pip install pfl"), "flower": ("ray", "pip install 'fedctta[flower-simulation]'")}
NEAR = 0.1  # percentage points between accuracies
OURS = "fedctta"
WARM = 2  # rounds that are not counted
DOMAINS = "gaussian_noise+fog+contrast+brightness+defocus_blur"
Tick = Callable[[], None]


class Task(NamedTuple):
    """What is played."""

    method: str
    clients: int
    rounds: int
    device: str
    cores: int


class Data:
    """The images of every round and client, and what is known of the model; the same for all peers."""

    def __init__(self, task: Task) -> None:
        values = {"stream": "iid", "samples": "overlap", "batch": 10, "slots": -(-task.rounds // 5), "seed": 0}
        self.experiment = single(
            {
                **values,
                "dataset": "cifar10-c",
                "domains": DOMAINS,
                "model": "resnet8",
                "adapter": task.method,
                "aggregator": "fedavg",
                "clients": task.clients,
                "device": task.device,
            }
        )
        self.device = choose_device(task.device)
        self.parts = choose_parts(self.experiment, self.device, Cache())
        self.rounds = len(self.parts.stream)
        self.slots = [self.parts.stream.slot(t) for t in range(self.rounds)]  # in memory: reading is not measured

    def batch(self, t: int, client: int) -> Tensor:
        """Return a client's images of round t on the device."""
        return to_input(self.slots[t].images[client], self.device)

    def count_right(self, t: int, client: int, logits: Tensor) -> int:
        """Return how many predictions of a client's batch are right."""
        return int((logits.argmax(1).cpu().numpy() == self.slots[t].labels[client]).sum())

    def accuracy(self, right: int) -> float:
        """Return percent of all images."""
        return 100 * right / (self.rounds * self.parts.stream.clients * 10)

    def make_client(self, method: str) -> PlainClient:
        """Return a client with the source model."""
        return METHODS[method](load_model("resnet8", "cifar10").to(self.device))


@torch.no_grad()
def write_over(client: PlainClient, tensors: Tensors) -> None:
    """Put tensors into a client's model."""
    for name, mine in client.upload().items():
        mine.copy_(tensors[name])


def play_fedctta(task: Task, data: Data, tick: Tick) -> float:
    """Our engine, reading and counting included."""

    def on_round(*_: Any) -> None:
        if data.device.type == "cuda":
            torch.cuda.synchronize()
        tick()

    tally = simulate(federate(data.experiment, data.parts), data.parts.stream, on_round=on_round)
    return 100 * tally.accuracy(data.rounds)


def play_pfllib(task: Task, data: Data, tick: Tick) -> float:
    """Client objects with a model each; the server copies its model into all, and adds theirs up one by one."""
    source = data.make_client(task.method)
    clients = [copy.deepcopy(source) for _ in range(task.clients)]
    right = 0
    for t in range(data.rounds):
        for i, client in enumerate(clients):
            client.adapt(data.batch(t, i))
        uploads = [copy.deepcopy(client.upload()) for client in clients]
        average = {name: torch.zeros_like(tensor) for name, tensor in uploads[0].items()}
        for upload in uploads:
            for name, tensor in upload.items():
                average[name] += tensor.detach() / task.clients
        for i, client in enumerate(clients):
            write_over(client, average)
            right += data.count_right(t, i, client.predict(data.batch(t, i)))
        tick()
    return data.accuracy(right)


def play_pfl(task: Task, data: Data, tick: Tick) -> float:
    """pfl-research: one model per process, a user at a time, statistics summed by its backend.

    An iteration predicts the batches of the round before with the new average and then adapts to the next ones. Every
    user has an optimiser of its own on the one model, so that nothing has to be exchanged for Tent.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import FederatedAlgorithm
    from pfl.common_types import Population
    from pfl.context import CentralContext
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam.base import AlgorithmHyperParams, ModelHyperParams
    from pfl.internal.ops import selector
    from pfl.metrics import Metrics
    from pfl.model.base import Model
    from pfl.stats import MappedVectorStatistics

    selector.set_framework_module(__import__("pfl.internal.ops.pytorch_ops", fromlist=["x"]))
    client = data.make_client(task.method)
    average = {name: tensor.detach().clone() for name, tensor in client.upload().items()}
    optimisers: dict[int, Any] = {}
    counts = {"right": 0}

    class Averaging(FederatedAlgorithm):  # type: ignore[misc]
        def get_next_central_contexts(self, model: Any, iteration: int, *_: Any) -> Any:
            if iteration > 0:
                tick()
            if iteration > data.rounds:
                return None, model, Metrics()
            context = CentralContext(
                current_central_iteration=iteration,
                do_evaluation=False,
                cohort_size=task.clients,
                population=Population.TRAIN,
                model_train_params=ModelHyperParams(),
                algorithm_params=AlgorithmHyperParams(),
                seed=iteration,
            )
            return (context,), model, Metrics()

        def simulate_one_user(self, model: Any, user: Any, context: Any) -> Any:
            t, i = context.current_central_iteration, int(user.user_id)
            write_over(client, average)
            if t > 0:
                counts["right"] += data.count_right(t - 1, i, client.predict(data.batch(t - 1, i)))
            if t == data.rounds:
                return None, Metrics()
            if task.method == "tent":
                client.optimiser = optimisers.setdefault(i, copy_optimiser(client))  # type: ignore[attr-defined]
            client.adapt(data.batch(t, i))
            sent = {name: tensor.detach().clone() for name, tensor in client.upload().items()}
            return MappedVectorStatistics(sent, weight=1), Metrics()

        def process_aggregated_statistics(self, context: Any, metrics: Any, model: Any, statistics: Any) -> Any:
            average.update({name: tensor / statistics.weight for name, tensor in statistics.items()})
            return model, Metrics()

        def process_aggregated_statistics_from_all_contexts(self, pairs: Any, metrics: Any, model: Any) -> Any:
            return (
                super().process_aggregated_statistics_from_all_contexts(pairs, metrics, model)
                if pairs
                else (model, Metrics())
            )

    users = FederatedDataset(
        lambda i: Dataset((np.zeros(10),), user_id=str(i)), MinimizeReuseUserSampler(list(range(task.clients)))
    )
    logging.disable(logging.WARNING)
    backend = SimulatedBackend(training_data=users, val_data=users)
    Averaging().run(AlgorithmHyperParams(), backend, Model, ModelHyperParams(), send_metrics_to_platform=False)
    return data.accuracy(counts["right"])


def copy_optimiser(client: PlainClient) -> torch.optim.Optimizer:
    """Return a fresh optimiser like the client's, on the same tensors."""
    return torch.optim.Adam(client.optimiser.param_groups[0]["params"], lr=client.optimiser.defaults["lr"])  # type: ignore[attr-defined]


def play_flower(task: Task, data: Data, tick: Tick) -> float:
    """Flower's simulation engine: a message to and from every client per round, an actor per core.

    A message brings the new average; the client predicts the batch before with it and adapts to the next one. Actors
    keep data and one model; what a client keeps (Tent's moments) is in its Flower context.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedctta.fleet.flower import run_simulation

    client_app, server_app = ClientApp(), ServerApp()
    counts = {"right": 0}
    rounds, clients, device = data.rounds, task.clients, data.device.type

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        client, here = _actor(task)
        t, i = int(message.content["at"]["t"]), int(context.node_config["partition-id"])
        arrays = message.content["average"].to_numpy_ndarrays()
        names = list(client.upload())
        write_over(
            client, {name: torch.from_numpy(array).to(device) for name, array in zip(names, arrays, strict=True)}
        )
        right = here.count_right(t - 1, i, client.predict(here.batch(t - 1, i))) if t > 0 else 0
        if t < rounds:
            _load_moments(client, context)
            client.adapt(here.batch(t, i))
            _keep_moments(client, context)
        sent = [tensor.detach().cpu().numpy() for tensor in client.upload().values()]
        content = RecordDict({"sent": ArrayRecord(sent), "counts": MetricRecord({"right": right})})
        return Message(content=content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < clients:
            pass
        average = [tensor.detach().cpu().numpy() for tensor in data.make_client(task.method).upload().values()]
        for t in range(rounds + 1):
            content = RecordDict({"average": ArrayRecord(average), "at": ConfigRecord({"t": t})})
            replies = list(
                grid.send_and_receive([Message(content, dst_node_id=n, message_type="train") for n in nodes])
            )
            assert len(replies) == clients, [reply.error for reply in replies if reply.has_error()]
            counts["right"] += sum(int(reply.content["counts"]["right"]) for reply in replies)
            sent = [reply.content["sent"].to_numpy_ndarrays() for reply in replies]
            average = [np.mean(each, axis=0) for each in zip(*sent, strict=True)]
            tick()

    logging.getLogger("flwr").setLevel(logging.ERROR)
    ray = {"num_cpus": task.cores, "include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    each = {"num_cpus": 1, "num_gpus": 1 / task.cores if device == "cuda" else 0.0}
    run_simulation(server_app, client_app, clients, backend_config={"client_resources": each, "init_args": ray})
    return data.accuracy(counts["right"])


def _actor(task: Task) -> tuple[PlainClient, Data]:
    """Return what an actor's process keeps: a model, and the data."""
    import fedctta

    if not hasattr(fedctta, "_peer"):
        torch.set_num_threads(1)
        data = Data(task)
        fedctta._peer = data.make_client(task.method), data  # type: ignore[attr-defined]
    return fedctta._peer  # type: ignore[attr-defined, no-any-return]


def _moments(client: PlainClient) -> Iterator[tuple[Tensor, str]]:
    for tensor in client.optimiser.param_groups[0]["params"]:  # type: ignore[attr-defined]
        yield from ((tensor, kind) for kind in ("exp_avg", "exp_avg_sq", "step"))


def _load_moments(client: PlainClient, context: Any) -> None:
    if not isinstance(client, TentClient):
        return
    client.optimiser.state.clear()
    if "moments" in context.state:
        for (tensor, kind), array in zip(_moments(client), context.state["moments"].to_numpy_ndarrays(), strict=True):
            client.optimiser.state[tensor][kind] = torch.from_numpy(array.copy()).to(
                tensor.device if kind != "step" else "cpu"
            )


def _keep_moments(client: PlainClient, context: Any) -> None:
    if isinstance(client, TentClient):
        from flwr.app import ArrayRecord

        state = client.optimiser.state
        context.state["moments"] = ArrayRecord([state[tensor][kind].cpu().numpy() for tensor, kind in _moments(client)])


PLAY: dict[str, Callable[[Task, Data, Tick], float]] = {
    "fedctta": play_fedctta,
    "pfllib": play_pfllib,
    "pfl": play_pfl,
    "flower": play_flower,
}


def play(peer: str, task: Task) -> None:
    """Play the task on one peer and print what was measured as one line of JSON."""
    if peer in NEEDS and find_spec(NEEDS[peer][0]) is None:
        print(json.dumps({"missing": f"{peer} is not installed: {NEEDS[peer][1]}"}))
        return
    torch.set_num_threads(task.cores)
    data, marks = Data(task), []
    began = perf_counter()
    accuracy = PLAY[peer](task, data, lambda: marks.append(perf_counter()))
    seconds = [late - early for early, late in pairwise(marks)][WARM - 1 :]
    if peer in ("pfl", "flower"):
        seconds = seconds[: data.rounds - WARM]  # the last iteration only predicts
    print(json.dumps({"seconds": seconds, "accuracy": accuracy, "start": marks[0] - began}))


def ask(python: str, peer: str, task: Task) -> dict[str, Any]:
    """Let another process play, and return what it measured."""
    command = [python, __file__, "--play", peer, json.dumps(task)]
    env = {**os.environ, "OMP_NUM_THREADS": str(task.cores)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        return {"missing": f"{peer} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--peers", nargs="+", default=list(PLAY), choices=list(PLAY))
    parser.add_argument("--rounds", type=int, default=10, help="at least 5; with 200 clients or more, half of them")
    parser.add_argument("--turns", type=int, default=2, help="how often every peer plays")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--cores", type=int, default=1, help="threads of a process, and of Flower the cores")
    parser.add_argument("--flower", default=sys.executable, help="a Python that has flwr and ray")
    parser.add_argument("--pfl", default=sys.executable, help="a Python that has pfl")
    parser.add_argument("--out", type=Path, help="write the page here")
    options = parser.parse_args()
    if options.play:
        play(options.play[0], Task(*json.loads(options.play[1])))
        return
    peers = list(dict.fromkeys([OURS, *options.peers]))
    pythons = {"flower": options.flower, "pfl": options.pfl}
    lines, far, missing = [], [], {}
    for method in options.methods:
        for clients in options.clients:
            rounds = max(5, options.rounds if clients < 200 else options.rounds // 2)
            task = Task(method, clients, rounds, options.device, options.cores)
            found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
            for _ in range(options.turns):
                for peer in peers:
                    if peer not in missing:
                        one = ask(pythons.get(peer, sys.executable), peer, task)
                        if "missing" in one:
                            missing[peer] = one["missing"]
                            print(f"{one['missing']}; left out", flush=True)
                        else:
                            found[peer].append(one)
            if not found[OURS]:
                sys.exit(missing[OURS])
            mine = median(s for one in found[OURS] for s in one["seconds"])
            for peer, ones in found.items():
                if ones:
                    spent = median(s for one in ones for s in one["seconds"])
                    apart = ones[0]["accuracy"] - found[OURS][0]["accuracy"]
                    far += [f"{peer}, {method}, {clients} clients: {apart:+.2f} points"] if abs(apart) > NEAR else []
                    start = median(one["start"] for one in ones)
                    cells = (method, f"{clients}", TITLES[peer], f"{1000 * spent:,.0f}", f"{spent / mine:.2f}")
                    lines.append("| " + " | ".join((*cells, f"{ones[0]['accuracy']:.2f}", f"{start:.1f}")) + " |")
                    print(lines[-1], flush=True)
            if options.out is not None:  # after every setting: the next one may take long
                with whole(options.out) as part:
                    part.write_text(page(lines, missing, options), encoding="utf-8")
    if far:
        sys.exit(f"accuracies differ by more than {NEAR} points: {'; '.join(far)}")


def page(lines: list[str], missing: dict[str, str], options: argparse.Namespace) -> str:
    """Return the page: the table, and what was fair and what was not."""
    words = [
        f"--clients {' '.join(map(str, options.clients))}",
        f"--rounds {options.rounds}",
        f"--turns {options.turns}",
    ]
    words += [f"--device {options.device}", f"--cores {options.cores}"]
    where = hardware(choose_device(options.device)) if options.device == "cuda" else f"{options.cores} core(s) of a CPU"
    load = f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores at the end"
    return f"""# The same task on other frameworks

Command: `python benchmarks/peers.py {" ".join(words)} --out docs/results/peers.md`,
on {where}, torch {torch.__version__}, {load}. ResNet-8 on
CIFAR-10-C, batches of 10; TTA-bn with FedAvg of the statistics, and Tent with FedAvg of scales and shifts.
Milliseconds are the median round over {options.turns} turn(s), in which the peers play one after another; *times ours*
is what to look at. *Start* is from the data in memory to the end of the first round. `--flower` and `--pfl` name the
Python of an environment that has that peer.

| method | clients | peer | ms per round | times ours | accuracy (%) | start (s) |
| :-- | --: | :-- | --: | --: | --: | --: |
{chr(10).join(lines)}
{"".join(f"{chr(10)}{reason}; it is left out.{chr(10)}" for reason in missing.values())}
## What is fair, and what is not

- All peers see the same images in the same order, start from the same weights and predict the same batches with the
  averaged model; accuracies agree within {NEAR} points. Their images are in memory; ours are read round by round.
- The clients of the peers are model objects changed by torch's own tools, the same code for all three. What differs
  between them is how the framework brings models, batches and averages together.
- *PFLlib's way* is our own loop after its idea (a deep copy of the model per client, sums over them), not its code:
  PFLlib trains classifiers with labels and has no test-time adaptation. It reads and writes nothing else.
- *pfl-research* and *Flower* fuse the prediction of one round with the adaptation of the next, so that a client is
  visited once per round; with two visits they would be slower. pfl-research has one model per process, and every user
  an optimiser on it, which costs it nothing. It could run once per core (Horovod); here it has `--cores` threads.
- *Flower* sends every client a message through its simulation engine (ray), one actor per core; actors keep the data. A
  message of Flower is made for real networks, and a simulation pays for serialising it.
- *fedctta* stacks all clients and passes their images through the shared convolutions at once. It also records
  calibration, entropy and bytes for every round, which the peers do not.
"""


if __name__ == "__main__":
    main()
