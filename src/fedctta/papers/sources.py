"""The source models of a preset: those that are not there are trained before the first run, once, into the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedctta.data.public_sets import PUBLIC
from fedctta.errors import UserError
from fedctta.files import lock
from fedctta.models import ARCHITECTURES, model_for
from fedctta.models.zoo import cached_path, read_card, weights_path
from fedctta.papers.tables import Paper
from fedctta.runs.jobs import work_at_once
from fedctta.runs.settings import Experiment
from fedctta.training.pretraining import prepare, pretrain


@dataclass(frozen=True)
class Training:
    """One source model to be trained: the words of `fedctta pretrain`, and where the weights go."""

    words: Mapping[str, Any]
    path: Path

    @property
    def command(self) -> str:
        """The command that makes the same."""
        return " ".join(["fedctta pretrain", *(f"{key}={value}" for key, value in self.words.items())])


def find_trainings(paper: Paper, experiments: Iterable[Experiment]) -> list[Training]:
    """Return the trainings of weights that experiments name and that are not there; refuse those of another size.

    Weights are named by the domains they know ("photo+sketch"), and by a variant of the preset's `pretrain` at the end
    ("photo-quick"); for data without domains to train on, by the variant alone.
    """
    if not paper.pretrain:
        return []
    found: dict[Path, Training] = {}
    for experiment in experiments:
        public = PUBLIC.get(experiment.dataset)
        model = model_for(experiment.dataset, experiment.model, public is not None and public.dense)
        domains, variant = split_name(experiment.weights, paper)
        known = public.domains if public is not None else ()
        named = all(domain in known for domain in domains)
        if model not in ARCHITECTURES or not named or (public is not None and not domains):
            continue  # a file, or a name that the run itself refuses
        name = "" if experiment.weights == "auto" else experiment.weights
        kept = weights_path(model, experiment.dataset, name)
        if kept is not None:
            require_size(kept, experiment)
            continue
        path = cached_path(model, experiment.dataset, name)
        words: dict[str, Any] = {"model": model, "dataset": experiment.dataset.removesuffix("-c")}
        words |= {key: value for key in ("size", "folder") if (value := getattr(experiment, key)) is not None}
        words |= {"train": "+".join(domains)} if domains else {}
        words |= {key: value for key, value in paper.pretrain.items() if not isinstance(value, dict)}
        words |= paper.pretrain.get(variant, {})
        words |= {"device": experiment.device} if experiment.device != "auto" else {}
        found[path] = Training(words | ({"out": path} if variant else {}), path)
    return list(found.values())


def find_trained(paper: Paper, experiments: Iterable[Experiment]) -> list[Experiment]:
    """Return the experiments whose source model need not be trained first: no others can have been played."""
    return [experiment for experiment in experiments if not find_trainings(paper, [experiment])]


def split_name(weights: str, paper: Paper) -> tuple[list[str], str]:
    """Return the domains that weights are named by, and the variant of their training.

    Names of domains may contain "-", so that only variants that the preset has are split off.
    """
    variants = [key for key, value in paper.pretrain.items() if isinstance(value, dict)]
    variant = next((key for key in variants if weights == key or weights.endswith(f"-{key}")), "")
    domains = weights.removesuffix(variant).removesuffix("-") if variant else weights
    return [] if domains in ("", "auto") else domains.split("+"), variant


def require_size(path: Path, experiment: Experiment) -> None:
    """Refuse weights in the cache that were trained on images of another size."""
    size = read_card(path).get("size", experiment.size) if path.with_suffix(".json").is_file() else experiment.size
    if size != experiment.size:
        raise UserError(
            f"{path} was trained on images of size {size} and the runs show {experiment.size}: move it and its card"
            f" elsewhere, or add size={size}"
        )


def train_sources(
    trainings: Sequence[Training], say: Callable[[str], None], jobs: int = 1, stop: bool = False
) -> dict[Path, str]:
    """Train what is missing, `jobs` models at once; return by path why those could not be trained that could not.

    With `stop` the first failure is raised, and no other training begins: each may take hours.
    """
    lines = [f"[{k + 1}/{len(trainings)}] {training.command}" for k, training in enumerate(trainings)]
    if jobs == 1:
        return {
            training.path: reason
            for line, training in zip(lines, trainings, strict=True)
            if (reason := _attempt(training, partial(say, line), stop))
        }
    for line in lines:
        say(line)
    _prepare(trainings)

    def end(training: Training, reason: str) -> None:
        if stop and reason:
            raise UserError(reason)

    reasons = work_at_once(_train, trainings, jobs, end)
    return {training.path: reason for training, reason in zip(trainings, reasons, strict=True) if reason}


def _prepare(trainings: Sequence[Training]) -> None:
    """Have the data of all trainings in the cache; what cannot be had is told by each training itself."""
    keys = ("model", "dataset", "size", "folder")
    for training in {tuple(map(str, map(each.words.get, keys))): each for each in trainings}.values():
        with suppress(UserError):
            prepare(training.words)


def _attempt(training: Training, begin: Callable[[], None], stop: bool) -> str:
    try:
        _train(training, begin)
    except UserError as error:
        if stop:
            raise
        return str(error)
    return ""


def _train(training: Training, begin: Callable[[], None] = lambda: None) -> None:
    """Train one model, if it is not there by now; processes that share a cache do not train the same at once."""
    training.path.parent.mkdir(parents=True, exist_ok=True)
    busy = f"another process is training {training.path.name}: start this again when it is done"
    place = training.path.with_suffix(".lock")
    with lock(place, busy):
        try:
            if not training.path.is_file():
                begin()
                pretrain(training.words)
        finally:
            place.unlink(missing_ok=True)  # while it is held: see `lock`
