"""The task of `peers.py` on pfl-research."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from fedctta.bench.plain_clients import PlainClient
from peer_ways.task import Data, Task, Tick, write_over


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
