"""What models take and give: a batch of tensors in any of the usual forms in, one tensor of logits out.

input    a tensor x[B, ...]; a tuple of tensors: the arguments of `forward`; a mapping: its keyword arguments. All
tensors of a batch have B rows
output   a tensor; an object with `.logits`; a mapping with "logits" or "out", or with one tensor; a tuple or list,
of which the first tensor counts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from fedctta.errors import UserError

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
PickLogits = Callable[[Any], Tensor]
NAMES = ("logits", "out")


def as_arguments(x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the arguments and keyword arguments with which a model is called on the batch."""
    if isinstance(x, Mapping):
        return (), dict(x)
    return (x, {}) if isinstance(x, tuple) else ((x,), {})


def tensors_in(x: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of a batch."""
    arguments, keywords = as_arguments(x)
    return (*arguments, *keywords.values())


def count_rows(x: Inputs) -> int:
    """Return how many images, or other things to classify, a batch has."""
    return len(tensors_in(x)[0])


def map_tensors(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """Return the batch with the function's results in place of its tensors.

    >>> import torch
    >>> map_tensors(lambda t: t[:1], {"a": torch.zeros(2), "b": torch.ones(2)})
    {'a': tensor([0.]), 'b': tensor([1.])}
    """
    if isinstance(x, Mapping):
        return {name: function(tensor) for name, tensor in x.items()}
    return tuple(map(function, x)) if isinstance(x, tuple) else function(x)


def split_rows(x: Inputs, size: int) -> list[Inputs]:
    """Return the batch in parts of `size` rows, the last one perhaps smaller."""
    firsts = range(0, count_rows(x), size)
    return [map_tensors(partial(_cut, first=first, size=size), x) for first in firsts]


def _cut(tensor: Tensor, first: int, size: int) -> Tensor:
    return tensor[first : first + size]


def pick_logits(output: Any) -> Tensor:
    """Return the logits in what a model gives.

    >>> import torch
    >>> pick_logits({"loss": torch.zeros(()), "logits": torch.zeros(2, 3)}).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(found := getattr(output, "logits", None), Tensor):
        return found
    if isinstance(output, Mapping):
        found = next((output[name] for name in NAMES if isinstance(output.get(name), Tensor)), None)
        tensors = [value for value in output.values() if isinstance(value, Tensor)]
        if found is None and len(tensors) == 1:
            found = tensors[0]
    elif isinstance(output, tuple | list):
        found = next((value for value in output if isinstance(value, Tensor)), None)
    if isinstance(found, Tensor):
        return found
    said = f"{sorted(output)}" if isinstance(output, Mapping) else type(output).__name__
    raise UserError(f"no logits can be found in what the model gives ({said}): say by output= which tensor they are")
