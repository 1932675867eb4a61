"""The logits that a function of the user's (`output=`) picks from what a model gives."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from fedctta.core.outputs import PickLogits, pick_logits
from fedctta.errors import UserError


def check_output(output: PickLogits) -> PickLogits:
    """Return the function, made to say in one line what is wrong with it.

    >>> check_output(lambda given: None)(3)
    Traceback (most recent call last):
    fedctta.errors.UserError: output= makes a NoneType of what the model gives (int): return the tensor of logits
    """
    if not callable(output):
        raise UserError(f"output is a {type(output).__name__}: give a function of what the model gives")
    return output if output is pick_logits else partial(_pick, output)


def _pick(output: PickLogits, given: Any) -> Tensor:
    try:
        logits = output(given)
    except (AttributeError, LookupError, TypeError) as error:
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise UserError(
            f"output= fails on what the model gives ({type(given).__name__}): {said}; correct it"
        ) from error
    if not isinstance(logits, Tensor):
        made = type(logits).__name__
        raise UserError(
            f"output= makes a {made} of what the model gives ({type(given).__name__}): return the tensor of logits"
        )
    return logits
