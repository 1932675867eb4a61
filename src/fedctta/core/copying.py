"""A copy of a user's model that nothing else holds, or one line that says why there can be none."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedctta.errors import UserError

# Attributes of layers that ask for gradient checkpoints: timm's and open_clip's, transformers', MONAI's, torchvision's
CHECKPOINTS = ("grad_checkpointing", "gradient_checkpointing", "use_checkpoint", "memory_efficient")


def copy_model(module: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode, whose tensors want no gradients, and which computes plainly."""
    refuse_uncopyable(module)
    try:
        return _make_plain(copy.deepcopy(module).eval().requires_grad_(False))
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # whatever the parts of a user's model raise
        raise UserError(_reason(module, error)) from error


def refuse_uncopyable(module: nn.Module) -> None:
    """Refuse kinds of models that cannot run with other tensors than their own."""
    if isinstance(module, nn.DataParallel):
        raise UserError("the model is wrapped in DataParallel, and only one device runs it: give model.module")
    if isinstance(module, torch.jit.ScriptModule):
        raise UserError("the model is a TorchScript module, which cannot be adapted: give the Python module it is of")
    for name, layer in module.named_modules():
        tensors = [tensor for tensor in (*layer._parameters.values(), *layer._buffers.values()) if tensor is not None]
        if any(is_lazy(tensor) for tensor in tensors):
            raise UserError(f"{_name(name)} knows no shape of its tensors yet: run the model on one batch first")
        if any(tensor.is_meta for tensor in tensors):
            raise UserError(f"{_name(name)} is on the meta device, without values: build the model on a CPU")


def _make_plain(module: nn.Module) -> nn.Module:
    """Switch off what changes no result and gets in the way of `torch.func`: checkpoints, and `torch.compile`."""
    for layer in module.modules():
        for name in CHECKPOINTS:
            if getattr(layer, name, None) is True:
                setattr(layer, name, False)
        layer._compiled_call_impl = None  # of `layer.compile()`
        if (inner := layer._modules.get("_orig_mod")) is not None:  # `torch.compile(layer)`
            layer.forward = inner.__call__
    return module


def _reason(module: nn.Module, error: Exception) -> str:
    """Say why a model could not be copied, and what to do."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            return f"{_name(name)} is a TorchScript module, which cannot be adapted: put the Python module in its place"
        for attribute, value in vars(layer).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                return (
                    f"{_name(name)} keeps the tensor {attribute!r} of a pass with gradients, which has no copy: run the"
                    " model on one batch under torch.no_grad() first"
                )
    told = " ".join(str(error).split())
    return (
        f"the model cannot be copied ({type(error).__name__}: {told}): take out of it what has no copy, such as locks,"
        " open files, generators and tensors that wait for gradients"
    )


def _name(layer: str) -> str:
    return f"layer {layer!r}" if layer else "the model"
