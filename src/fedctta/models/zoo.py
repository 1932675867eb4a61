"""Trained weights: where they lie, how they are written and read, and the card that tells their story.

A checkpoint is `<model>-<dataset>.safetensors` with `<model>-<dataset>.json`, its card, beside it; one by another
recipe carries its name at the end (`resnet8-cifar10-paper`), and so does one trained by clients
(`resnet8-cifar10-fedavg`). Some come with the package; `fedctta pretrain` puts
others into the user's cache, where they are found first. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedctta.errors import UserError, unknown
from fedctta.files import whole
from fedctta.models import ARCHITECTURES, build
from fedctta.models.checkpoints import read_tensors, strip_prefix
from fedctta.models.vit import ViT

PACKAGED = Path(__file__).parent / "weights"

FEDERATIONS = ("none", "fedavg")
"""How source clients train together; all but "none" are part of a checkpoint's name."""


def weights_of(model: str) -> str:
    """Return the model whose weights `model` takes: itself, unless its architecture names another."""
    architecture = ARCHITECTURES.get(model)
    return (architecture and architecture.weights_of) or model


def weights_name(model: str, dataset: str, recipe: str = "") -> str:
    """Return the file name of a checkpoint; a corrupted data set ("cifar10-c") shares its clean one's."""
    return f"{'-'.join(filter(None, (weights_of(model), dataset.removesuffix('-c'), recipe)))}.safetensors"


def cached_path(model: str, dataset: str, recipe: str = "") -> Path:
    """Return where `fedctta pretrain` keeps the weights it makes."""
    from fedctta.data.cache import cache_dir

    return cache_dir() / "weights" / weights_name(model, dataset, recipe)


def weights_path(model: str, dataset: str, recipe: str = "") -> Path | None:
    """Find the weights of a model: those the user has trained first, in the cache, then those of the package."""
    places = (cached_path(model, dataset, recipe), PACKAGED / weights_name(model, dataset, recipe))
    return next((path for path in places if path.is_file()), None)


def origin(path: Path) -> str:
    """Say where weights lie: in the "package", in the "cache" where `fedctta pretrain` put them, or "elsewhere"."""
    from fedctta.data.cache import cache_dir

    return {PACKAGED: "package", cache_dir() / "weights": "cache"}.get(path.parent, "elsewhere")


def find_weights(model: str, dataset: str, weights: str | Path = "auto") -> Path:
    """Return the file of the weights asked for: "auto" (see `weights_path`), a recipe's name ("paper"), or a path."""
    if model not in ARCHITECTURES:
        raise unknown("model", model, ARCHITECTURES)
    recipe = "" if weights == "auto" else str(weights)
    if Path(recipe).suffix or Path(recipe).name != recipe:
        return Path(weights)
    path = weights_path(model, dataset, recipe)
    if path is None:
        clean, trained = dataset.removesuffix("-c"), weights_of(model)
        raise UserError(
            f"no {recipe}{' ' if recipe else ''}weights of {trained} for {clean}: run `fedctta pretrain "
            f"model={trained} dataset={clean}{_words(recipe)}`, or give the path of a .safetensors file"
        )
    return path


def load_model(model: str, dataset: str, classes: int = 10, weights: str | Path = "auto", **options: Any) -> nn.Module:
    """Build `model` and fill it with trained weights: float32, in evaluation mode, on the CPU.

    `weights` are those `find_weights` finds; `options` go to `build`.
    """
    module = build(model, classes, **options)
    load_weights(module, find_weights(model, dataset, weights))
    return module.eval()


def variant(recipe: str, federation: str) -> str:
    """Return what a checkpoint's name ends in: "" for the standard recipe, "paper", "fedavg" or "paper-fedavg"."""
    return "-".join(word for word in (recipe, federation) if word not in ("standard", "none"))


def _words(variant: str) -> str:
    """Return the words by which `fedctta pretrain` makes a variant."""
    before, _, last = variant.rpartition("-")
    recipe, federation = (before, last) if last in FEDERATIONS[1:] else (variant, "")
    return (recipe and f" recipe={recipe}") + (federation and f" federation={federation}")


def load_weights(module: nn.Module, path: Path) -> None:
    """Fill `module` with the tensors of a file (see `checkpoints`), which must be exactly the module's own."""
    stored = strip_prefix(_without_counters(read_tensors(path)), _state(module))
    if isinstance(module, ViT):  # made for one size of images, and the file knows which
        module.fit(stored)
    wanted = _state(module)
    stored = _under_all_names(stored, wanted)
    mismatch = _first_mismatch(wanted, stored)
    if mismatch is not None:
        raise UserError(f"{path} does not fit this network ({mismatch}): choose the model it was made for")
    for name, tensor in stored.items():
        if not tensor.isfinite().all():
            raise UserError(f"{path} holds values that are not finite in {name}: make it again")
    # `load_state_dict` converts each to the type of the module's own: half precision to float32, indices stay whole
    module.load_state_dict({name: stored[name] for name in wanted}, strict=False)


def save_weights(module: nn.Module, path: Path, card: Mapping[str, Any], half: bool = True) -> None:
    """Write the weights of `module` to `path` and `card` beside it.

    With `half`, matrices and kernels are rounded to float16. Vectors (biases and BatchNorm's tensors) stay
    float32: they are few, and running variances may leave float16's range. A matrix that leaves it is refused.
    """
    dtypes = {True: torch.float16, False: torch.float32}
    tensors = {
        name: tensor.detach().to("cpu", dtypes[half and tensor.ndim > 1]).contiguous()
        for name, tensor in _state(module).items()
    }
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(
                f"{name} holds values that are not finite in {tensor.dtype}, so {path} is not written: train with a"
                " lower lr, or save with half=False"
            )
    save_tensors(tensors, path, card)


def save_tensors(tensors: Mapping[str, Tensor], path: Path, card: Mapping[str, Any]) -> None:
    """Write tensors, on the CPU, to `path` and `card` beside them.

    Weights never stand beside a card that is not theirs: an old card goes before the new weights come.
    """
    place = path.with_suffix(".json")
    with whole(place) as card_part, whole(path) as part:
        save_file(dict(tensors), part)
        card_part.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
        place.unlink(missing_ok=True)


def read_card(path: Path) -> dict[str, Any]:
    """Read the card of the weights at `path`."""
    try:
        card = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} has no card: put {path.with_suffix('.json').name} beside it") from error
    except (OSError, ValueError) as error:
        raise UserError(f"the card of {path} is damaged: make the weights again") from error
    if not isinstance(card, dict):
        raise UserError(f"the card of {path} is damaged: make the weights again")
    return card


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Return every tensor a checkpoint holds: all but BatchNorm's batch counters, which nothing reads."""
    return _without_counters(module.state_dict())


def _without_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out BatchNorm's counters of batches, which no pass reads."""
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}


def _under_all_names(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return stored tensors under every name that the module has for one; a file may hold shared ones once."""
    places = {name: (t.data_ptr(), t.shape, t.stride()) for name, t in wanted.items() if t.numel()}
    held = {place: stored[name] for name, place in places.items() if name in stored}
    return {name: held[place] for name, place in places.items() if place in held} | dict(stored)


def _first_mismatch(wanted: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> str | None:
    for name, tensor in wanted.items():
        if name not in stored:
            return f"{name} is missing"
        if stored[name].shape != tensor.shape:
            return f"{name} is {list(stored[name].shape)}, not {list(tensor.shape)}"
    extra = next((name for name in stored if name not in wanted), None)
    return None if extra is None else f"{extra} is unexpected"
