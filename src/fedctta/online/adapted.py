"""A model of one's own that adapts while it predicts: `fedctta.adapt(module, "tent")`.

Every call predicts a batch and adapts to it, with the numbers of `fedctta run` with one client and without a server
(see `Adaptation`), as long as nothing goes wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedctta.adapters import Adapter, adapters
from fedctta.core.clients import Client
from fedctta.core.copying import copy_model
from fedctta.core.network import Network
from fedctta.core.outputs import Inputs, PickLogits, count_rows, map_tensors, pick_logits
from fedctta.core.tensors import like
from fedctta.errors import UserError
from fedctta.health.guard import Guard
from fedctta.health.signals import Health
from fedctta.keys import UNWAITING
from fedctta.online.adaptation import Adaptation, Predict
from fedctta.online.batches import WINDOW, Given, GivenInputs, alone, first_input, is_finite, to_batch
from fedctta.online.default_method import choose_default
from fedctta.online.picked import check_output
from fedctta.online.saved import file_path, read_state, write_state


def adapt(
    module: nn.Module,
    method: str | Adapter | None = None,
    *,
    predict: Predict = "after",
    source_images: GivenInputs | None = None,
    window: int = WINDOW,
    one_pass: bool = True,
    dense: bool = False,
    output: PickLogits = pick_logits,
    guard: Guard = "reset",
    check: int = 10,
    seed: int = 0,
    **parameters: Any,
) -> AdaptedModel:
    """Return a model that adapts while it predicts. The module itself stays as it is.

    `method` is an adapter's name (`fedctta methods` lists them), with its parameters as keywords (`lr=1e-4`, or
    `**{"tent.lr": 1e-4}`), or an adapter. Without one it is `recall`; a model or images that this does not fit are
    predicted without adapting, with a warning. `source_images` are for methods that study images of the source. With
    `one_pass`, a method whose adapting pass gives the prediction's numbers needs no second pass. `dense` is for a
    module that predicts every pixel; `output` picks the logits from what the module gives. `guard` says what an alarm
    does, and `check` how many batches lie between checks of the model's health (0: no checks). `seed` is for methods
    that draw random numbers.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"adapt was given a {type(module).__name__}: give a torch.nn.Module, with its weights loaded")
    if any(isinstance(part, AdaptedModel) for part in module.modules()):
        raise UserError("adapt was given a model that adapts already: give its source (model.source)")
    first = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), None)
    if first is None:
        raise UserError(f"{type(module).__name__} has no weights, so there is nothing to adapt: give a trained model")
    network = Network(module, first.device, dense, output=check_output(output))
    optional = method is None and not parameters
    adapter = _make(_choose(network) if optional else method or UNWAITING, parameters)
    images = _check_images(adapter, source_images, first)
    words = {"predict": predict, "window": window, "one_pass": one_pass, "guard": guard, "check": check, "seed": seed}
    words["optional"] = optional
    adaptation = Adaptation(network, adapter, source_images=images, **words)  # type: ignore[arg-type]
    if not optional or adapter.adapts:
        _refuse_idle(adaptation)
    return AdaptedModel(module, adaptation)


def _choose(network: Network) -> str:
    """Return the method for a model for which none was named; warn if it adapts nothing."""
    name, why = choose_default(network)
    if why:
        warnings.warn(why, stacklevel=3)
    return name


def _make(method: str | Adapter, parameters: Mapping[str, Any]) -> Adapter:
    if isinstance(method, Adapter):
        if parameters:
            raise UserError(f"an adapter that is an object takes no {', '.join(parameters)}: give it to the object")
        return method
    if not isinstance(method, str):
        raise UserError(f"the method is a {type(method).__name__}: give the name of an adapter, or an adapter")
    return adapters.create(method, {key.removeprefix(f"{method}."): value for key, value in parameters.items()})


def _check_images(adapter: Adapter, images: GivenInputs | None, like: Tensor) -> Inputs | None:
    """Return the images that the method studies; refuse those without effect, and too few."""
    wanted = adapter.source_images
    if images is None and not wanted:
        return None
    if images is None:
        remedy = f" or {adapter.without_images}" if adapter.without_images else ""
        raise UserError(f"adapter {adapter.name!r} studies {wanted} images of the source: give source_images={remedy}")
    if not wanted:
        raise UserError(f"source_images has no effect on adapter {adapter.name!r} with these parameters: drop it")
    found = to_batch(images, like.device, like.dtype)
    if not is_finite(found):
        raise UserError("source_images have NaN or infinite values: leave these images out")
    if count_rows(found) < wanted:
        raise UserError(
            f"adapter {adapter.name!r} studies {wanted} images of the source and got {count_rows(found)}: give more"
        )
    return map_tensors(lambda t: t[:wanted], found)


def _refuse_idle(adaptation: Adaptation) -> None:
    """Refuse options without effect on the method."""
    adapter, window = adaptation.adapter, adaptation.window.size
    idle = ""
    if adaptation.predict == "before" and adapter.predicts_alike(communicates=False):
        idle, why = "predict='before'", "predicts the same before and after adapting"
    elif adaptation.seed and "key" not in adaptation.client.private:
        idle, why = f"seed={adaptation.seed}", "draws no random numbers"
    elif window != WINDOW and not adaptation.refusal(1):
        idle, why = f"window={window}", "takes single images"
    if idle:
        raise UserError(f"{idle} has no effect on adapter {adapter.name!r}, which {why} with these parameters: drop it")


def _one_batch(inputs: tuple[Any, ...], keywords: dict[str, Any]) -> GivenInputs:
    """Return what a module was called with as one batch: alone, a tuple of arguments, or their names and values."""
    if inputs and keywords:
        raise UserError("a batch comes as arguments and as keyword arguments: give all of them by name, or none")
    if keywords:
        return keywords
    return inputs[0] if len(inputs) == 1 else inputs


def _first_names(module: nn.Module) -> dict[str, str]:
    """Return, for every further name of a tensor that has several (tied weights), the first one."""
    firsts: dict[int, str] = {}
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: first for name, tensor in named if (first := firsts.setdefault(id(tensor), name)) != name}


class AdaptedModel(nn.Module):
    """A module that adapts while it predicts; made by `fedctta.adapt`.

    `model(images)` returns logits and adapts. A module of several inputs is called as usual, `model(a, b)` or
    `model(**batch)`, or with one tuple or dictionary. It works without gradients, in inference mode too; `train()` and
    `eval()` have no effect on it. `to(device)` moves it, and leaves the given module (`source`) where it is.
    Parameters, buffers and `state_dict` are those of the adapted model, so a state dict loads into the module's own
    class.
    """

    source: nn.Module

    def __init__(self, module: nn.Module, adaptation: Adaptation) -> None:
        super().__init__()
        object.__setattr__(self, "source", module)  # not a part of this module: its tensors are not the adapted ones
        self.adaptation = adaptation
        self._first_names, self._first_input = _first_names(module), first_input(module)
        self.eval()

    @property
    def adapter(self) -> Adapter:
        """The method."""
        return self.adaptation.adapter

    @property
    def client(self) -> Client:
        """The state of the method: the tensors it adapts, and those it keeps for itself."""
        return self.adaptation.client

    @property
    def health(self) -> Health:
        """How the model fares, without labels."""
        return self.adaptation.health

    @property
    def frozen(self) -> bool:
        """Whether the model has stopped adapting."""
        return self.adaptation.frozen

    @property
    def _first(self) -> Tensor:
        return next(t for t in self.adaptation.network.state.values() if t.is_floating_point())

    def forward(self, *inputs: GivenInputs, **keywords: Given) -> Tensor:
        """Return the logits of a batch and adapt to it."""
        given = _one_batch(inputs, keywords)
        with torch.inference_mode(False), torch.no_grad():
            x = alone(to_batch(given, self._first.device, self._first.dtype), self._first_input)
            dense = self.adaptation.network.dense
            if dense and not isinstance(x, Tensor):
                raise UserError("dense=True and a batch of several tensors: give the images as one tensor")
            rows = self.adaptation.answer(x)
            if not dense or not isinstance(x, Tensor):
                return rows
            return rows.view(len(x), *x.shape[2:], rows.shape[-1]).movedim(-1, 1)

    def reset(self) -> None:
        """Begin anew from the source model."""
        self.adaptation.reset()

    def freeze(self) -> None:
        """Stop adapting; go on predicting with the model as it is."""
        self.adaptation.frozen = True

    def unfreeze(self) -> None:
        """Adapt again, also after guard="freeze" has stopped it."""
        self.adaptation.frozen = self.adaptation.watchman.resting = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AdaptedModel:
        """Move or cast everything, as `nn.Module` does for `to`, `cuda` and their like."""
        old, moved = self.adaptation.network, fn(torch.zeros_like(self._first))
        module = copy_model(self.source)
        module.load_state_dict(old.module.state_dict())  # the given module may have changed since
        network = Network(module.to(moved.device, moved.dtype), moved.device, old.dense, output=old.output)
        network.written = old.written
        self.adaptation.convert(network, fn)
        return self

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the adapted model's parameters."""
        found = self.adaptation.network.module.named_parameters(prefix, recurse, remove_duplicate)
        return ((name, nn.Parameter(t, False)) for name, t in self._replaced(found, prefix))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the adapted model's buffers."""
        return self._replaced(self.adaptation.network.module.named_buffers(prefix, recurse, remove_duplicate), prefix)

    def _replaced(self, tensors: Iterator[tuple[str, Any]], prefix: str) -> Iterator[tuple[str, Tensor]]:
        start = f"{prefix}." if prefix else ""
        return ((name, self._adapted(name.removeprefix(start), tensor)) for name, tensor in tensors)

    def _adapted(self, name: str, tensor: Tensor) -> Tensor:
        """Return what the client has in place of a tensor of the module, under whichever of its names."""
        return self.client.own.get(self._first_names.get(name, name), tensor)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Return the adapted model's tensors under the names that the given module has for them."""
        found = self.adaptation.network.module.state_dict(*arguments, **options)
        prefix = options.get("prefix", "")
        found.update({name: self._adapted(name.removeprefix(prefix), tensor) for name, tensor in found.items()})
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take what the method adapts from a state dict; the rest must be that of the source."""
        wanted = self.state_dict()
        if state_dict.keys() != wanted.keys():
            odd = sorted(state_dict.keys() ^ wanted.keys())[0]
            raise UserError(f"the state dict does not fit the model, {odd!r} is only in one of them: give another")
        tensors = {name: tensor for name, tensor in wanted.items() if isinstance(tensor, Tensor)}
        for name, tensor in tensors.items():
            if not isinstance(state_dict[name], Tensor) or state_dict[name].shape != tensor.shape:
                raise UserError(f"the state dict has another shape for {name!r} than the model: give another")
        own, found = self.client.own, {name: state_dict[name].to(tensor) for name, tensor in tensors.items()}
        for name, first in self._first_names.items():
            if name in found and not torch.equal(found[name], found.get(first, found[name])):
                raise UserError(
                    f"the state dict has other values for {name!r} than for {first!r}, and the model has one tensor"
                    " for both: give both the same"
                )
        names = ((name, self._first_names.get(name, name)) for name in found)
        other = [name for name, first in names if first not in own and not torch.equal(found[name], tensors[name])]
        if other:
            raise UserError(
                f"the state dict has other values for {other[0]!r}, which is not adapted: load it into the"
                " module, and adapt that"
            )
        self.adaptation.take_up(self.client._replace(own={n: like(t, state_dict[n]) for n, t in own.items()}))
        return nn.modules.module._IncompatibleKeys([], [])

    def save(self, path: str | Path) -> None:
        """Write the state to a file, with the method and its parameters; not the source's tensors."""
        now = self.adaptation
        write_state(file_path(path), now.network, now.adapter, now.state())

    def load(self, path: str | Path) -> None:
        """Go on from what `save` wrote, for the same module, method and parameters."""
        now = self.adaptation
        if not now.restore(read_state(file_path(path), now.network, now.adapter)):
            raise UserError(f"{path} is a state of another version of this method: begin with a new one")

    def extra_repr(self) -> str:
        """Say which method adapts which module."""
        return f"{type(self.source).__name__}, {self.adapter}"
