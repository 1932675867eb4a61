"""The source model of a run: by name, by `module:name`, or given as an object; and whether it fits the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedctta.core.copying import refuse_uncopyable
from fedctta.core.network import Network
from fedctta.data.domains import numbered
from fedctta.data.masked import AnyDomains, with_more_classes
from fedctta.data.public_sets import PUBLIC
from fedctta.errors import UserError, either
from fedctta.keys import Lift
from fedctta.models import ARCHITECTURES, USUAL, build, model_for
from fedctta.models.source import Source
from fedctta.models.try_on import refuse_regression
from fedctta.models.zoo import cached_path, find_weights, load_model, load_weights, weights_name, weights_path
from fedctta.registry import import_object
from fedctta.runs.settings import Experiment

CLASSES = "choose a model that fits, or name all of its classes (data in folders: a line each in classes.txt)"
RANDOM = "random"  # the weights of a model that is not trained


def choose_model(experiment: Experiment, data: AnyDomains) -> str:
    """Return the name of the model: the data's usual one for "auto"; refuse one that predicts something else."""
    if experiment.model == "auto" and not data.dense and experiment.dataset.removesuffix("-c") not in USUAL:
        raise UserError("data of your own have no usual model: add model=package.module:function of your own")
    known = ARCHITECTURES.get(experiment.model)
    if known is not None and known.dense != data.dense:
        what = "a class for every pixel" if data.dense else "one class an image"
        fit = " or ".join(name for name, model in ARCHITECTURES.items() if model.dense == data.dense)
        raise UserError(f"model={experiment.model} does not fit data with {what}: use model={fit}")
    return model_for(experiment.dataset, experiment.model, data.dense)


def find_source(dataset: str, model: str, weights: str, given: nn.Module | None = None) -> Source:
    """Return the file the model's weights come from, if they come from one, and its card."""
    if given is not None:
        if weights != "auto":
            raise UserError(
                f"weights={weights} has no effect on a model given as an object: load them into it, and drop the key"
            )
        return Source.of(None)
    if weights == RANDOM or (":" in model and weights == "auto"):
        return Source.of(None)
    if ":" not in model and dataset in PUBLIC:
        refuse_untrained(dataset, model, weights)
    return Source.of(Path(weights) if ":" in model else find_weights(model, dataset, weights))


def refuse_untrained(dataset: str, model: str, weights: str) -> None:
    """Refuse weights for a public set that are not there, and say which ones are and how to make others."""
    if Path(weights).suffix or Path(weights).name != weights or weights_path(model, dataset, weights) is not None:
        return
    name, known_domains = weights_name(model, dataset).removesuffix(".safetensors"), PUBLIC[dataset].domains
    train = "+".join(domain for domain in known_domains if domain in weights.split("+")) or known_domains[0]
    found = sorted(cached_path(model, dataset).parent.glob(f"{name}-*.safetensors"))
    known = either(f"weights={path.stem.removeprefix(f'{name}-')}" for path in found) if found else ""
    asked = "say which weights" if weights == "auto" else f"no weights {weights} of {model} for {dataset}"
    make = f"`fedctta pretrain model={model} dataset={dataset} train={train}` makes weights={train}"
    raise UserError(f"{asked}: {f'there are {known}; ' if known else ''}{make}; or give the path of a file")


def notes_on_training(experiment: Experiment, source: Source) -> Iterator[str]:
    """Yield what of a model's training a reader of results on a public set should know."""
    if experiment.dataset not in PUBLIC or experiment.weights == RANDOM:
        return
    if "train" not in source.card or source.card.get("dataset") != experiment.dataset:
        yield f"on which images of {experiment.dataset} the model was trained is not known: all are shown"
    elif source.card.get("size") != experiment.size:
        yield f"source model: trained on images of size {source.card.get('size')}, and these have {experiment.size}"


def load_module(dataset: str, model: str, weights: str, classes: int) -> nn.Module:
    """Load a model by its name or by `module:name`, with the weights asked for; by default it must be trained."""
    if ":" not in model:
        return build(model, classes).eval() if weights == RANDOM else load_model(model, dataset, classes, weights)
    if weights == RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same in every run
            return import_model(model)
    module = import_model(model, None if weights == "auto" else Path(weights))
    if weights == "auto" and is_untrained(module, partial(import_model, model)):
        raise UserError(
            f"model={model} gives other numbers whenever it is called, so it is not trained: add weights=FILE"
            f" (.safetensors or .pt), or weights={RANDOM} if that is meant"
        )
    return module


def is_untrained(module: nn.Module, make: Callable[[], nn.Module]) -> bool:
    """Whether a model is drawn at random: made again with another seed, it has other parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed() + 1)
        again = make()
    pairs = zip(module.parameters(), again.parameters(), strict=False)
    # where both are NaN they are the same: that the model computes nothing is told when it runs
    return any(one.shape != two.shape or not one.isclose(two, 0, 0, equal_nan=True).all() for one, two in pairs)


def import_model(place: str, weights: Path | None = None) -> nn.Module:
    """Import `module:name` (from the current folder too), call it unless it is a module already, and fill it."""
    module_name, _, name = place.partition(":")
    try:
        found = import_object(module_name, name)
    except Exception as error:  # whatever the user's module raises
        raise UserError(f"cannot import model={place}: {_in_one_line(error)}; write module:function") from error
    try:
        model = found if isinstance(found, nn.Module) else found()
    except Exception as error:
        raise UserError(
            f"model={place} cannot be called: {_in_one_line(error)}; name a function without arguments"
        ) from error
    if isinstance(model, Mapping) and any(isinstance(value, Tensor) for value in model.values()):
        raise UserError(f"model={place} gives tensors, not a model: let it build one, and give them by weights=FILE")
    if not isinstance(model, nn.Module):
        raise UserError(f"model={place} gives a {type(model).__name__}: it must give a torch.nn.Module")
    refuse_uncopyable(model)
    if weights is not None:
        load_weights(model, weights)
    return model


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def fit_classes(data: AnyDomains, x: Tensor, logits: Tensor) -> AnyDomains:
    """Return the data, with the model's number of classes if theirs are only numbers; refuse outputs of another form.

    `logits`[B, K], or [B H W, K] of a dense model, are the model's for images x[B, 3, H, W] of the data.
    """
    height, width = x.shape[-2:]
    if data.dense and len(logits) != len(x) * height * width:
        raise UserError(
            f"the model does not predict every pixel of images of {height}x{width} pixels: choose one that does, as"
            " unet"
        )
    if logits.ndim == 2:
        data = with_more_classes(data, numbered(logits.shape[1]))
    classes = len(data.classes)
    refuse_regression(logits)
    if logits.ndim != 2 or logits.shape[1] != classes:
        raise UserError(
            f"the model gives outputs of shape {list(logits.shape[1:])} and the data have {classes}"
            f" class{'es' * (classes != 1)}: {CLASSES}"
        )
    return data


def possible_lift(network: Network, x: Tensor, how: Lift, descends: bool = False) -> Lift:
    """Return `how`, or a loop in place of "auto" where vmap cannot run the model (it may branch on values).

    `descends`: it must take gradients, too, which vmap cannot do of every layer that it can run.
    """
    if how == "loop":
        return how
    try:
        with torch.no_grad():
            torch.func.vmap(lambda images: network({}, images).logits)(x[None])
            if descends and network.differentiable:  # other models are refused
                weights = {name: tensor[None] for name, tensor in network.trained.items()}
                torch.func.vmap(network.find_slopes)(weights, x[None])
    except RuntimeError as error:
        if how != "auto":
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"lift={how} cannot run this model: {reason}; use lift=loop") from error
        return "loop"
    return how
