"""A torch model as a pure function of its tensors, with BatchNorm made explicit.

A client owns some of the model's tensors and shares the rest with everybody. `Network` runs the model with a client's
own tensors in place of the shared ones of the same name. Besides the logits it returns what test-time adaptation needs
and `nn.Module` hides: the statistics of every BatchNorm layer and the penultimate features. It changes nothing, so it
can be differentiated and vmapped.

A BatchNorm layer that a model calls several times per pass still has one pair of statistics. The rule normalises each
call separately, and the layer keeps the mean of what its calls would keep: (1 - a) old + a mean_k batch_k, one step
per pass for any number of calls. (Torch's train mode takes a step per call, so that the last call has most weight, and
with momentum 1 all of it.)

A dense model predicts every pixel. Each pixel is then treated like one image of a classifier: logits [B, K, H, W] are
returned as [B H W, K], image by image and row by row, and so are features. Losses, probes and counts are written once.
The pixels of a volume lie along three axes, and those of a series along one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedctta.core.batch_normalisation import normalise_by_batch
from fedctta.core.convolution import Form, convolve
from fedctta.core.copying import copy_model
from fedctta.core.fused_norms import normalise_blended
from fedctta.core.gpu_kernels import can_fuse
from fedctta.core.moments import SHORT
from fedctta.core.norm_layers import (
    Intercept,
    batch_norm,
    fold,
    global_average,
    keeps_statistics,
    normalises,
    overrides_forward,
    run_group_norm,
    scale_and_shift,
)
from fedctta.core.norms import Blended, ByBatch, NormRule, Statistics, blend, stored
from fedctta.core.outputs import Inputs, PickLogits, as_arguments, pick_logits, tensors_in
from fedctta.core.packed_kernels import PackedKernels
from fedctta.core.pooling import max_pool, read_pool
from fedctta.core.rectifiers import NO_RECTIFIERS, OtherPass, Rectifiers
from fedctta.core.rehearsal import Rehearsal, Written
from fedctta.core.rows_of_channels import TYPES
from fedctta.errors import UserError

Tensors = dict[str, Tensor]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Output(NamedTuple):
    """What one forward pass gives: logits, features, and the statistics to keep.

    The features are the input of the model's classifier; a model without one has `has_features` False and gives its
    logits. A dense model has a row for every pixel.
    """

    logits: Tensor
    features: Tensor
    statistics: Tensors


@dataclass
class _Pass:
    """The rule of the current pass, which tensors are the client's own, and what the layers store."""

    rule: NormRule = stored
    own: Collection[str] = ()
    statistics: Tensors = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    features: Tensor | None = None
    folded: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # scales and shifts known beforehand
    rectifiers: Rectifiers = NO_RECTIFIERS


class Network:
    """A model's function, apart from its tensors.

    `state` holds the source tensors by their `state_dict` names. `network(own, x, rule)` runs the model on x[B, ...]
    with `own` in place of the tensors of `state`; `rule` says with what BatchNorm layers normalise. `norms` names the
    BatchNorm layers, `affine` the scales and shifts of all normalisation layers, and `classifier` the last `nn.Linear`,
    or a last convolution of single pixels. `last_stage` is how names of the last stage begin, where the model has an
    attribute that says so. With `dense`, the model gives logits [B, K, H, W].
    With `bf16`, convolutions and matrix products compute with bfloat16 (on a GPU) and activations are kept so;
    parameters, statistics, logits and features are float32. `output` picks the logits from what the model gives, and
    the forms of x are those of `outputs`.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        dense: bool = False,
        bf16: bool = False,
        output: PickLogits = pick_logits,
    ) -> None:
        self.dense, self.bf16, self.output = dense, bf16, output
        self.batches = True  # whether vmap can run the model, as far as is known (see `at_once`)
        self._pass, self._packed = _Pass(), PackedKernels()
        self._tops: dict[tuple[torch.Size, ...], dict[str, float]] = {}  # of rectifiers, by the shapes of inputs
        self._module = copy_model(module).to(device)
        _put_channels_last(self._module)
        layers = dict(self._module.named_modules())  # each once, so that one with two names is one here too
        for name, layer in layers.items():
            self._take_over(name, layer)
        self.norms = tuple(name for name, layer in layers.items() if keeps_statistics(layer))
        self.state: Tensors = {
            name: tensor
            for name, tensor in (*self._module.named_parameters(), *self._module.named_buffers())
            if name.rpartition(".")[2] != "num_batches_tracked"  # counts batches of training, and nothing here
        }
        self._given = dict(self.state)
        self.written = Written()
        for name in self.norms:
            if _tensor(name, "running_mean") not in self.state:
                raise UserError(f"layer {name!r} has the statistics of another one: give every BatchNorm layer its own")
        self._shared = _shared_tensors(self._module)
        self._alike = _group_norms(layers, self.state)
        names = (
            _tensor(name, kind) for name, layer in layers.items() if normalises(layer) for kind in ("weight", "bias")
        )
        self.affine = tuple(name for name in names if name in self.state)
        self.last_stage = tuple(
            _tensor(name, start)
            for name, layer in layers.items()
            if isinstance(starts := getattr(layer, "last_stage", None), tuple)
            for start in starts
        )
        self.classifier, last = _classifier(self._module, dense)
        if _tensor(self.classifier, "weight") not in self.state:  # another layer's, or computed
            self.classifier, last = "", None
        self.has_features = last is not None
        self.differentiable = bool(self.parameters)  # as far as is known (see `try_gradients`)
        if last is not None:
            last.register_forward_pre_hook(self._catch_features)

    def _take_over(self, name: str, layer: nn.Module) -> None:
        """Make a layer compute the same, but with the statistics of the pass's rule, and in a way vmap batches."""
        if keeps_statistics(layer):
            run = self._derived_norm if overrides_forward(layer) else self._batch_norm
            layer.forward = partial(run, name, layer)  # type: ignore[method-assign]
        elif isinstance(layer, nn.GroupNorm):
            layer.forward = partial(run_group_norm, layer)  # type: ignore[method-assign]
        elif isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1)):
            layer.forward = global_average  # type: ignore[assignment, method-assign]
        elif type(layer) is nn.MaxPool2d and not layer.return_indices:
            layer.forward = partial(self._max_pool, layer)  # type: ignore[method-assign]
        elif type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            layer._conv_forward = partial(self._convolve, _tensor(name, "weight"), layer)  # type: ignore[method-assign]

    def _batch_norm(self, name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise with the statistics that the rule gives, and store those to keep."""
        if name not in self._pass.folded:
            return self._normalise(name, layer, x, layer.weight, layer.bias, layer.eps)
        self._use(name, layer, x)
        rectifiers = self._pass.rectifiers
        return rectifiers.note(name, scale_and_shift(x, *self._pass.folded[name], rectifiers.top(name)))

    def _normalise(
        self, name: str, layer: _BatchNorm, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        """Normalise by the rule; a blend with the batch's statistics in one pass, where there is a kernel."""
        rule, rectifiers = self._pass.rule, self._pass.rectifiers
        top = rectifiers.top(name)
        if isinstance(rule, ByBatch) and weight is not None and bias is not None and _pulls_back(x):
            y, *found = normalise_by_batch(x, weight, bias, eps, top)
            old = Statistics(layer.running_mean, layer.running_var)  # type: ignore[arg-type]
            self._keep(name, rule.keep(x, old, Statistics(*found)))
            return rectifiers.note(name, y)
        if not isinstance(rule, Blended) or not can_fuse(x, TYPES) or torch.is_grad_enabled():
            used = self._use(name, layer, x)
            return rectifiers.note(name, batch_norm(x, used.mean, used.var, weight, bias, eps, top))
        origin: Tensor = layer.running_mean  # type: ignore[assignment]
        y, *batch = normalise_blended(x, origin, rule.terms[name], rule.share, weight, bias, eps, top)
        self._keep(name, Statistics(*batch))
        return rectifiers.note(name, y)

    def _fold(self, own: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return scales and shifts of layers that normalise as stored: laid side by side, all are computed at once."""
        folded: dict[str, tuple[Tensor, Tensor]] = {}
        for (eps, kinds), names in self._alike.items():
            rows = {kind: [_tensor(name, kind) for name in names] for kind in kinds}
            each = {kind: torch.cat([own.get(n, self.state[n]) for n in row]) for kind, row in rows.items()}
            inverse = torch.rsqrt(each["running_var"] + eps)
            both = fold(each["running_mean"], inverse, each.get("weight"), each.get("bias"))
            sizes = [len(self.state[n]) for n in rows["running_mean"]]
            folded |= zip(names, zip(*(torch.split(part, sizes) for part in both), strict=True), strict=True)
        return folded

    def _derived_norm(self, name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Run a layer derived from BatchNorm with the statistics that the rule gives; the rest is as it is."""

        def given_norm(
            y: Tensor,
            running_mean: Tensor | None,
            running_var: Tensor | None,
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Tensor:
            return self._normalise(name, layer, y, weight, bias, eps)

        with Intercept(F.batch_norm, given_norm) as seen:
            y: Tensor = type(layer).forward(layer, x)
        if not seen.calls:
            raise UserError(
                f"layer {name!r} ({type(layer).__name__}) normalises in a way of its own: call F.batch_norm in its"
                " forward, or use torch.nn.BatchNorm*d"
            )
        return y

    def _use(self, name: str, layer: _BatchNorm, x: Tensor) -> Statistics:
        """Return the statistics to normalise x[B, C, ...] with, and store those to keep."""
        used, kept = self._pass.rule(name, x, Statistics(layer.running_mean, layer.running_var))  # type: ignore[arg-type]
        self._keep(name, kept)
        return used

    def _keep(self, name: str, kept: Statistics) -> None:
        """Store the statistics to keep of one call of a layer."""
        now, mean, var = self._pass, _tensor(name, "running_mean"), _tensor(name, "running_var")
        now.calls[name] = calls = now.calls.get(name, 0) + 1
        if calls > 1:  # the mean so far
            kept = blend(Statistics(now.statistics[mean], now.statistics[var]), kept, 1 / calls)
        now.statistics[mean], now.statistics[var] = kept

    def _catch_features(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features = inputs[0]
        if not self.dense and isinstance(layer, CONVOLUTIONS):
            features = features.flatten(1)
        if self.dense:
            pixels = features.movedim(1, -1) if isinstance(layer, CONVOLUTIONS) else features
            features = pixels.reshape(-1, pixels.shape[-1])
        self._pass.features = features

    def __call__(self, own: Mapping[str, Tensor], x: Inputs, rule: NormRule = stored) -> Output:
        """Run the model on one batch with a client's own tensors."""
        tensors = {**self._replaced(), **self.written.copies(self.state), **own}
        return self._call(tensors, own, self.written.spare(x), rule)

    def rehearse(self, x: Inputs) -> Output:
        """Run the source model on a batch of a new form, and note what it writes, for all passes from then on."""
        seen = Rehearsal(x, {name: self.state[name] for name, _ in self._module.named_buffers() if name in self.state})
        tensors = {**self._replaced(), **seen.buffers}
        output = self._call(tensors, {}, seen.x, stored)
        self.written = seen.written(tensors, self.written)
        return output

    @property
    def trained(self) -> Tensors:
        """The source's scales and shifts of normalisation layers, or without any its parameters: what steps change."""
        return {name: self.state[name] for name in self.affine} or self.parameters

    def find_slopes(self, weights: Tensors, x: Inputs) -> Tensors:
        """Return gradients in some weights, of a sum of the logits."""

        def total(weights: Tensors) -> Tensor:
            logits = self(weights, x).logits
            return (logits * torch.arange(1, 1 + logits.shape[-1], device=logits.device)).sum()

        slopes: Tensors = torch.func.grad(total)(weights)
        return slopes

    def try_gradients(self, x: Inputs) -> None:
        """Note whether gradients of the logits reach what is trained.

        They do not where a part is quantised or run without gradients; `torch.func` cannot take those of every model.
        """
        try:
            slopes = self.find_slopes(self.trained, x)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            slopes = {}
        self.differentiable = any(bool(slope.any()) for slope in slopes.values())

    def _call(self, tensors: Tensors, own: Mapping[str, Tensor], x: Inputs, rule: NormRule) -> Output:
        """Run the model on one batch with these tensors in place of the module's, of which `own` are the client's."""
        pays = rule is stored and bool(self._alike) and self.device.type == "cuda"  # a CPU begins operations faster
        self._pass = now = _Pass(rule, own.keys(), folded=self._fold(own) if pays else {})
        arguments, keywords = as_arguments(x)
        shapes = tuple(tensor.shape for tensor in tensors_in(x))
        fuses = self.batches and self._tops.get(shapes) != {} and can_fuse(tensors_in(x)[0])
        now.rectifiers = Rectifiers(self._tops.get(shapes)) if fuses else NO_RECTIFIERS
        try:
            with self._arithmetic(), now.rectifiers if fuses else nullcontext():
                output = self._run(tensors, arguments, keywords)
        except OtherPass:
            self._tops[shapes] = {}
            return self._call(tensors, own, x, rule)
        finally:
            self._pass = _Pass()
        if fuses and shapes not in self._tops:
            self._tops[shapes] = now.rectifiers.find(output)
        logits = self.output(output)
        if len(now.calls) < len(self.norms):  # a layer that was not called keeps what it has
            now.statistics = {n: now.statistics.get(n, own.get(n, t)) for n, t in self.statistics.items()}
        if self.dense and logits.dim() > 2:
            logits = logits.movedim(1, -1).flatten(0, -2)
        features = logits if now.features is None or not self._fits(logits, now.features) else now.features
        return Output(_full(logits), _full(features), now.statistics)

    def _run(self, tensors: Tensors, arguments: Any, keywords: Any) -> Any:
        """Run the module with these tensors in place of its own; exchanging tensors costs time, so only if needed."""
        if not tensors:
            return self._module(*arguments, **keywords)
        if self._shared:
            tensors |= {place: tensors[name] for name in [*tensors] for place in self._shared.get(name, ())}
        return torch.func.functional_call(self._module, tensors, arguments, keywords, tie_weights=False)

    def _replaced(self) -> Tensors:
        """Return the source tensors that are no longer the module's."""
        return {name: tensor for name, tensor in self.state.items() if tensor is not self._given.get(name)}

    def _fits(self, logits: Tensor, features: Tensor) -> bool:
        """Whether the last linear layer gives the logits; if not, the model has no features.

        Something else may give them (a convolution), or something may follow (a mean over words, or over pixels).
        """
        if self.has_features and logits.dim() == 2:
            classes, width = self.state[_tensor(self.classifier, "weight")].flatten(1).shape
            fits = (classes, width) == (logits.shape[1], features.shape[-1])
            if not fits or (not self.dense and features.shape[:-1] != logits.shape[:-1]):
                self.has_features, self.classifier = False, ""
        return self.has_features

    def _convolve(self, name: str, layer: nn.Conv2d, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve as the layer does, in a way that is fast for the client's own kernels."""
        form = Form(layer.stride, layer.padding, layer.dilation, layer.groups)  # type: ignore[arg-type]
        # inside vmap, the gradient of torch's own gives cuDNN an empty x in another order, and copies it into cuDNN's
        copies = x.is_cuda and torch.is_grad_enabled()
        if name not in self._pass.own and not copies and not form.multiplies_shared(x, kernel):
            return self._packed.convolve(name, layer, x, kernel, bias)
        y = convolve(x, kernel, form)
        return y if bias is None else y + bias.to(y.dtype).view(-1, 1, 1)

    def _max_pool(self, layer: nn.MaxPool2d, x: Tensor) -> Tensor:
        """Pool as the layer does; on a GPU in the order in which clients' images lie."""
        if x.dim() == 4 and x.is_cuda:
            return max_pool(read_pool(layer), x)
        y: Tensor = nn.MaxPool2d.forward(layer, x)
        return y

    def _arithmetic(self) -> AbstractContextManager[object]:
        if not self.bf16 or self.device.type != "cuda":
            return nullcontext()
        # Without a cache of weights, which would be frozen in a CUDA graph.
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)

    @property
    def module(self) -> nn.Module:
        """The model itself, for inspection."""
        return self._module

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next(iter(self.state.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first tensor of real numbers, which is what the model computes in; float32 without one."""
        return next((t.dtype for t in self.state.values() if t.is_floating_point()), torch.float32)

    @property
    def statistics(self) -> Tensors:
        """The source statistics of every BatchNorm layer."""
        names = (_tensor(layer, kind) for layer in self.norms for kind in ("running_mean", "running_var"))
        return {name: self.state[name] for name in names}

    @property
    def parameters(self) -> Tensors:
        """The source parameters (weights and biases) that are real numbers: steps are of these."""
        return {name: tensor for name, tensor in self._module.named_parameters() if tensor.is_floating_point()}

    @property
    def extractor(self) -> list[str]:
        """The names of all parameters but the classifier's."""
        return [name for name in self.parameters if name.rpartition(".")[0] != self.classifier]


def _tensor(layer: str, kind: str) -> str:
    """Return the name of a layer's tensor; the model itself is a layer without a name."""
    return f"{layer}.{kind}".removeprefix(".")


def _shared_tensors(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return every place of a tensor that several layers share, by the name of each place.

    A layer with two names is one place. Torch's own `tie_weights` takes it for two, and never puts the module's tensor
    back.
    """
    places: dict[int, list[str]] = {}
    for name, layer in module.named_modules():
        for kind, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None:
                places.setdefault(id(tensor), []).append(_tensor(name, kind))
    return {name: tuple(same) for same in places.values() if len(same) > 1 for name in same}


def _pulls_back(x: Tensor) -> bool:
    """Whether there may be a gradient, and kernels for it."""
    return torch.is_grad_enabled() and can_fuse(x)


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in SHORT else x


def _classifier(module: nn.Module, dense: bool) -> tuple[str, nn.Module | None]:
    """Return the last `nn.Linear` and its name; of a model without one, or a dense one, the last layer with weights.

    That layer counts only if it sees one pixel.
    """
    linear = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if linear and not dense:
        return linear[-1]
    weighing = (nn.Linear, nn.modules.conv._ConvNd)
    name, last = ([("", module)] + [(n, m) for n, m in module.named_modules() if isinstance(m, weighing)])[-1]
    pointwise = isinstance(last, nn.Linear) or (isinstance(last, CONVOLUTIONS) and set(last.kernel_size) == {1})
    return (name, last) if pointwise else ("", None)


def _group_norms(layers: Mapping[str, nn.Module], state: Tensors) -> dict[tuple[float, tuple[str, ...]], list[str]]:
    """Return the names of BatchNorm layers that only normalise, by their eps and which tensors they have.

    Layers with tensors of another name, which are shared with another layer or computed, are left out.
    """
    groups: dict[tuple[float, tuple[str, ...]], list[str]] = {}
    for name, layer in layers.items():
        if keeps_statistics(layer) and not overrides_forward(layer):
            kinds = ("running_mean", "running_var", *(k for k in ("weight", "bias") if getattr(layer, k) is not None))
            if all(_tensor(name, kind) in state for kind in kinds):
                groups.setdefault((layer.eps, kinds), []).append(name)
    return groups


def _put_channels_last(module: nn.Module) -> None:
    """Lay out tensors of four axes with channels last; torch's own `to` refuses a model that has five, too."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
