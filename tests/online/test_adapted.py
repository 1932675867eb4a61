"""A model that adapts while it predicts: the numbers of a run, and the manners of a module."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedctta
from fedctta.adapters import adapters
from fedctta.adapters.bn import BatchStatistics
from fedctta.adapters.tent import Tent
from fedctta.core.clients import by_loop
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.online.saved import write_state
from fedctta.registry import parameter_types
from fedctta.runs.build import choose_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single

# parameters with which a method is quick, or does something, on a few random images
SMALL = {
    "grad": {"lr": 1e-3},
    "eata": {"threshold": 0.9, "images": 8},
    "rdumb": {"every": 1},
    "sar": {"threshold": 0.9},
    "t3a": {"supports": 3},
    "cotta": {"views": 2},
    "memo": {"views": 2},
    "rotta": {"places": 3},
    "bbn": {"threshold": 0.9},
    "atp": {"rates": "0.01"},
    "fedthe": {"views": 2, "plus": 1, "images": 8},
    "fedicon": {"steps": 2},
}


def batches(count=3, size=4, side=32):
    return torch.rand(count, size, 3, side, side, generator=torch.Generator().manual_seed(3))


def images_for(name):
    return torch.zeros(8, 3, 8, 8) if adapters.create(name, SMALL.get(name, {})).source_images else None


@pytest.mark.parametrize("predict", ["after", "before"])
@pytest.mark.parametrize("name", adapters.classes())
def test_predictions_are_those_of_a_run_with_one_client(name, predict, tiny_module, federation):
    adapter = adapters.create(name, SMALL.get(name, {}))
    if predict == "before" and adapter.predicts_alike(communicates=False):
        pytest.skip("the same as after")
    one = federation(Network(tiny_module), adapter, "local", clients=1, lift=by_loop)
    one = replace(one, predict=predict, batch=4)
    images = images_for(name)
    model = fedctta.adapt(tiny_module, name, predict=predict, source_images=images, guard="off", **SMALL.get(name, {}))
    state, there = one.start(), torch.ones(1, dtype=torch.bool)
    for t, x in enumerate(batches()):
        with torch.no_grad():
            state, outcome = one.play(state, t, x[None], there, None)
        assert torch.equal(model(x), outcome.logits[0])


def test_no_parameter_of_a_method_is_hidden_by_a_word_of_adapt():
    words = set(inspect.signature(fedctta.adapt).parameters)
    for name, cls in adapters.classes().items():
        assert not words & set(parameter_types(cls)), name


def test_one_pass_gives_the_numbers_of_two(tiny_module):
    for name in ("bn", "norm-alpha"):
        one, two = (fedctta.adapt(tiny_module, name, one_pass=many) for many in (True, False))
        for x in batches():
            assert torch.equal(one(x), two(x))
        assert one.adaptation._one_pass is True
        assert two.adaptation._one_pass is False


class Twice(nn.Module):
    """Calls one BatchNorm layer twice, so that what it keeps is not what it normalises with."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.norm(1 + 2 * self.norm(x) ** 2).mean((2, 3)))


def test_a_layer_that_is_called_twice_takes_two_passes():
    module = Twice()
    one, two = (fedctta.adapt(module, "bn", one_pass=many) for many in (True, False))
    for x in batches():
        assert torch.equal(one(x), two(x))
    assert one.adaptation._one_pass is False


def test_a_method_is_a_name_with_parameters_or_an_object(tiny_module):
    x = batches()[0]
    plain = fedctta.adapt(tiny_module, "tent", lr=0.1)(x)
    assert torch.equal(plain, fedctta.adapt(tiny_module, "tent", **{"tent.lr": 0.1})(x))
    assert torch.equal(plain, fedctta.adapt(tiny_module, Tent(lr=0.1))(x))
    assert not torch.equal(plain, fedctta.adapt(tiny_module, "tent")(x))


@pytest.mark.parametrize(
    ("arguments", "words", "line"),
    [
        (("tentt",), {}, "did you mean tent"),
        (("tent",), {"rate": 1}, "parameter of tent"),
        (("tent",), {"bn.momentum": 1}, "parameter of tent"),
        ((Tent(),), {"lr": 1}, "takes no lr"),
        ((3,), {}, "give the name of an adapter"),
        (("tent",), {"predict": "never"}, "predict"),
        (("tent",), {"source_images": torch.zeros(8, 3, 8, 8)}, "no effect on adapter 'tent'"),
        (("eata",), {}, "give source_images= or fisher=0"),
        (("eata",), {"source_images": torch.zeros(8, 3, 8, 8)}, "got 8"),
        ((), {"predict": "before"}, "predict='before' has no effect on adapter 'recall', which predicts the same"),
        (("bn",), {"predict": "before"}, "predict='before' has no effect on adapter 'bn'"),
        (("bn",), {"seed": 7}, "seed=7 has no effect on adapter 'bn', which draws no random numbers"),
        (("none",), {"window": 3}, "window=3 has no effect on adapter 'none', which takes single images"),
        (("bn",), {"momentum": 0.1, "window": 0}, "window=0 has no effect on adapter 'bn'"),
        (("tent",), {"window": -1}, "window=-1"),
        (("tent",), {"window": 2.5}, "window=2.5 is not a whole number"),
        (("tent",), {"window": "many"}, "window=many is not a whole number"),
        (("tent",), {"check": 2.5}, "check=2.5 is not a whole number"),
        (("tent",), {"check": None}, "check=None is not a whole number"),
        (("cotta",), {"seed": None}, "seed=None is not a whole number"),
        (("cotta",), {"seed": "x"}, "seed=x is not a whole number"),
        (("tent",), {"output": "logits"}, "output is a str: give a function"),
        (("eata",), {"images": 8, "source_images": torch.full((8, 3, 8, 8), torch.nan)}, "leave these images out"),
        (("tent",), {"window": 1}, "window=1 is too small for adapter 'tent': use window=2 or more"),
        (("fedicon",), {"window": 1}, "window=1 is too small for adapter 'fedicon': use window=2 or more"),
        (("cola",), {"least": 4, "window": 2}, "window=2 is too small for adapter 'cola': use window=4 or more"),
    ],
)
def test_what_cannot_be_is_one_line(tiny_module, arguments, words, line):
    with pytest.raises(UserError, match=line) as caught:
        fedctta.adapt(tiny_module, *arguments, **words)
    assert "\n" not in str(caught.value)


def test_what_is_no_model_is_one_line(tiny_module):
    for thing, line in (({}, "given a dict"), (nn.ReLU, "given a type"), (nn.ReLU(), "no weights")):
        with pytest.raises(UserError, match=line):
            fedctta.adapt(thing, "bn")
    for thing in (fedctta.adapt(tiny_module, "bn"), nn.Sequential(fedctta.adapt(tiny_module), nn.ReLU())):
        with pytest.raises(UserError, match=r"adapts already: give its source \(model\.source\)"):
            fedctta.adapt(thing, "none")
    with pytest.raises(UserError, match="has none: use adapter"):
        fedctta.adapt(nn.Linear(2, 2), "bn")


def test_the_module_stays_as_it_is(tiny_module):
    before = copy.deepcopy(tiny_module.state_dict())
    model = fedctta.adapt(tiny_module.train(), "grad", lr=0.1)
    for x in batches():
        model(x)
    assert model.source is tiny_module
    assert tiny_module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in tiny_module.state_dict().items())


def test_training_mode_gradients_and_inference_mode_change_no_number(tiny_module):
    x = batches()[0]
    expected = fedctta.adapt(tiny_module, "tent")(x)
    assert not expected.requires_grad
    assert torch.equal(fedctta.adapt(tiny_module, "tent").train()(x), expected)
    with torch.inference_mode():
        assert torch.equal(fedctta.adapt(tiny_module, "tent")(x * 1), expected)


def test_the_state_dict_is_the_adapted_models_and_loads_into_the_module(tiny_module):
    model = fedctta.adapt(tiny_module, "bn")
    x = batches()[0]
    logits = model(x)
    fresh = copy.deepcopy(tiny_module)
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.allclose(fresh(x), logits, atol=1e-5)
    assert not torch.allclose(tiny_module(x), logits, atol=1e-5)
    assert {n: p.shape for n, p in model.named_parameters()} == {n: p.shape for n, p in tiny_module.named_parameters()}
    assert torch.equal(dict(model.named_buffers())["1.running_mean"], fresh[1].running_mean)
    assert next(model.parameters()).device == torch.device("cpu")


def test_a_state_dict_brings_back_what_is_adapted_and_nothing_else(tiny_module):
    model, other = (fedctta.adapt(tiny_module, "bn") for _ in range(2))
    model(batches()[0])
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.client.own["1.running_mean"], model.client.own["1.running_mean"])
    foreign = {**model.state_dict(), "0.weight": torch.zeros(4, 3, 3, 3)}
    with pytest.raises(UserError, match=r"has other values for '0\.weight'"):
        other.load_state_dict(foreign)
    with pytest.raises(UserError, match="only in one"):
        other.load_state_dict({})


class Tied(nn.Module):
    """Has one matrix under two names, and one layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.again, self.a, self.b = self.norm, nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.b(self.a(self.again(self.conv(x)).relu().mean((2, 3))).relu()))


def test_a_tensor_of_two_names_is_adapted_under_both():
    torch.manual_seed(0)
    module, x = Tied().eval(), batches()[0]
    model, other = (fedctta.adapt(module, "shot", lr=0.05, guard="off") for _ in range(2))
    for _ in range(3):
        model(x)
    state = model.state_dict()
    for one, two in (("a.weight", "b.weight"), ("norm.weight", "again.weight"), ("norm.bias", "again.bias")):
        assert torch.equal(state[one], state[two])
        assert not torch.equal(state[one], module.state_dict()[one])
        named = dict(model.named_parameters(remove_duplicate=False))
        assert torch.equal(named[one], named[two])
    fresh = Tied()
    fresh.load_state_dict(state)
    with torch.no_grad():
        adapted = Network(module)(model.client.own, x).logits
        torch.testing.assert_close(fresh.eval()(x), adapted)
    assert model.state_dict(prefix="inner.").keys() == {f"inner.{name}" for name in state}
    assert torch.equal(model.state_dict(prefix="inner.")["inner.b.weight"], state["a.weight"])
    other.load_state_dict(fresh.state_dict())
    assert torch.equal(other.client.own["a.weight"], state["a.weight"])
    with pytest.raises(UserError, match=r"other values for 'b\.weight' than for 'a\.weight'"):
        other.load_state_dict(state | {"b.weight": torch.zeros(8, 8)})
    with pytest.raises(UserError, match=r"other values for 'conv\.weight', which is not adapted"):
        fedctta.adapt(module, "bn").load_state_dict(module.state_dict() | {"conv.weight": torch.zeros(8, 3, 3, 3)})


@pytest.mark.parametrize("value", [torch.zeros(3), torch.zeros(4, 4), None, 1.0])
@pytest.mark.parametrize("name", ["0.weight", "1.running_mean"])
def test_a_state_dict_of_another_shape_is_refused_and_changes_nothing(name, value, tiny_module):
    model = fedctta.adapt(tiny_module, "bn")
    own = model.client.own
    with pytest.raises(UserError, match=f"another shape for {name!r} than the model: give another"):
        model.load_state_dict(model.state_dict() | {name: value})
    assert model.client.own is own


@pytest.mark.parametrize("name", adapters.classes())
def test_casting_moves_the_model_and_not_the_module(name, tiny_module):
    model = fedctta.adapt(tiny_module, name, source_images=images_for(name), **SMALL.get(name, {}))
    model(batches()[0])
    kinds = {key: tensor.dtype for key, tensor in model.client.private.items()}
    model.to(torch.float64)
    assert model(batches()[1]).dtype == torch.float64
    for key, tensor in model.client.private.items():
        assert tensor.dtype == (torch.float64 if kinds[key].is_floating_point else kinds[key]), key
    assert next(model.parameters()).dtype == torch.float64
    assert next(tiny_module.parameters()).dtype == torch.float32
    assert model.health.skipped == 0


@pytest.mark.parametrize("name", adapters.classes())
def test_a_model_in_float64_gives_the_numbers_of_one_in_float32_but_for_rounding(name, tiny_module):
    single, double = (
        fedctta.adapt(module, name, source_images=images_for(name), **SMALL.get(name, {}))
        for module in (tiny_module, copy.deepcopy(tiny_module).double())
    )
    for x in batches():
        torch.testing.assert_close(double(x).float(), single(x), rtol=1e-2, atol=1e-2)
    assert double.health.skipped == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", adapters.classes())
def test_a_model_in_16_bits_is_adapted_or_refused_in_one_line(name, dtype, tiny_module, tmp_path):
    short, words = copy.deepcopy(tiny_module).to(dtype), {"source_images": images_for(name), **SMALL.get(name, {})}
    single = fedctta.adapt(tiny_module, name, **words)
    if not single.adapter.short:
        own = single.client.own
        for attempt in (lambda: single.to(dtype), lambda: fedctta.adapt(short, name, **words)):
            with pytest.raises(UserError, match=r"in b?float16: call \.float\(\) on it, or use adapter bn, lame, none"):
                attempt()
        assert single.client.own is own
        return
    model, cast = fedctta.adapt(short, name), fedctta.adapt(tiny_module, name).to(dtype)
    for x in batches():
        expected = single(x)
        torch.testing.assert_close(model(x), expected, rtol=0.05, atol=0.05)
        torch.testing.assert_close(cast(x), expected, rtol=0.05, atol=0.05)
    assert model.health.skipped == cast.health.skipped == 0
    model.save(tmp_path / "state.safetensors")
    again = fedctta.adapt(short, name)
    again.load(tmp_path / "state.safetensors")
    assert torch.equal(again(batches()[0]), model(batches()[0]))


def test_casting_changes_neither_who_answers_nor_the_healthy_state(tiny_module):
    """Only the window is forgotten: its images are of the other device or precision."""
    model = fedctta.adapt(tiny_module, "norm-ema", guard="freeze")
    now, (x, y, _) = model.adaptation, batches()
    model(x)
    healthy = model.client
    now.window.add(x)
    model(y)
    now._healthy, now.watchman.resting = healthy, True  # as an alarm leaves it
    signals = now.watchman.signals
    model.to(torch.float64).to("cpu")
    assert model.health.answers == "source"
    assert now._healthy.own["1.running_mean"].equal(healthy.own["1.running_mean"].double())
    assert not now._healthy.own["1.running_mean"].equal(model.client.own["1.running_mean"])
    assert now.seen.equal(y.double())
    assert now.watchman.signals == signals
    assert now.window.images is None
    model.unfreeze()
    now._healthy = model.client
    model.to("cpu")
    assert now._healthy is model.client


@pytest.mark.gpu
def test_a_model_moves_to_a_gpu_and_goes_on(tiny_module):
    here, there = (fedctta.adapt(tiny_module, "tent") for _ in range(2))
    for t, x in enumerate(batches()):
        if t == 1:
            there = there.to("cuda")
        assert torch.allclose(here(x), there(x).cpu(), atol=1e-4)


def test_reset_begins_anew(tiny_module):
    model = fedctta.adapt(tiny_module, "roid")
    first = [model(x) for x in batches()]
    model.reset()
    assert model.health.batches == 0
    assert all(torch.equal(model(x), logits) for x, logits in zip(batches(), first, strict=True))


def test_a_frozen_model_predicts_and_stays(tiny_module):
    model = fedctta.adapt(tiny_module, "norm-ema")
    x, y, _ = batches()
    model(x)
    model.freeze()
    own = model.client.own["1.running_mean"].clone()
    assert torch.equal(model(y), model(y))
    assert torch.equal(model.client.own["1.running_mean"], own)
    model.unfreeze()
    model(y)
    assert not torch.equal(model.client.own["1.running_mean"], own)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e38])
@pytest.mark.parametrize("name", ["bn", "tent", "grad", "norm-ema", "t3a"])
def test_a_batch_that_is_not_finite_changes_nothing(name, poison, tiny_module):
    model, sound = (fedctta.adapt(tiny_module, name, guard="off") for _ in range(2))
    first, second, third = batches()
    model(first)
    sound(first)
    bad = second.clone()
    bad[1] = poison
    logits = model(bad)
    with torch.no_grad():
        expected = Network(tiny_module)({}, bad).logits
    assert torch.equal(logits[[0, 2, 3]], expected[[0, 2, 3]])
    assert model.health.skipped == 1
    assert torch.equal(model(third), sound(third))


def test_small_batches_are_seen_among_the_last_images(tiny_module):
    model = fedctta.adapt(tiny_module, "tent", window=4, guard="off")
    images = batches(2).flatten(0, 1)
    logits = [model(image[None]) for image in images]
    with torch.no_grad():
        for k in range(3):  # too few to know: the source model
            assert torch.equal(logits[k], Network(tiny_module)({}, images[k : k + 1]).logits)
    whole = fedctta.adapt(tiny_module, "tent", guard="off")
    assert torch.equal(logits[3], whole(images[:4])[-1:])
    assert torch.equal(logits[7], whole(images[4:])[-1:])
    assert model.health.batches == 2


def test_a_method_that_needs_many_images_at_once_waits_for_as_many(tiny_module):
    model = fedctta.adapt(tiny_module, "cola", least=4, window=5, guard="off")
    images = batches(2).flatten(0, 1)
    for image in images[:4]:
        assert model(image[None]).shape == (1, 3)
    assert model.health.batches == 0
    model(images[4:5])
    assert model.health.batches == 1
    assert fedctta.adapt(tiny_module, "bn", momentum=0.5)(images[:1]).shape == (1, 3)


def test_a_ragged_last_batch_is_predicted(tiny_module):
    for name in ("tent", "bn", "norm-ema", "none"):
        model = fedctta.adapt(tiny_module, name, **({"window": 4} if name in ("tent", "bn") else {}))
        model(batches()[0])
        assert model(batches()[1][:1]).shape == (1, 3)
        assert model(batches()[1][:3]).shape == (3, 3)


def test_a_small_batch_after_large_ones_is_not_a_reason_to_adapt_to_those_again(tiny_module):
    model = fedctta.adapt(tiny_module, "tent", window=4, guard="off")
    images = batches(3, 2).flatten(0, 1)
    model(images[:4])
    own = model.client.own
    model(images[4:5])
    assert model.client.own is own
    for k in range(1, 4):
        model(images[k : k + 1])
    assert model.health.batches == 2


def test_without_a_window_a_small_batch_is_refused_with_methods_that_can(tiny_module):
    model = fedctta.adapt(tiny_module, "tent", window=0)
    with pytest.raises(UserError, match=r"use batch=2 or more, or adapter .*norm-alpha.*window=16"):
        model(batches()[0][:1])


def test_a_window_forgets_images_of_another_shape(tiny_module):
    model = fedctta.adapt(tiny_module, "tent", window=2)
    model(batches()[0])
    with torch.no_grad():
        x = batches(side=8)[0, :1]
        assert torch.equal(model(x), Network(tiny_module)({}, x).logits)


def test_uint8_images_and_arrays_are_taken(tiny_module):
    images = torch.randint(0, 256, (4, 8, 8, 3), dtype=torch.uint8)
    expected = fedctta.adapt(tiny_module, "bn")(images.movedim(-1, 1).float() / 255)
    for given in (images, images.numpy(), images.movedim(-1, 1), images.movedim(-1, 1).double().numpy() / 255):
        assert torch.allclose(fedctta.adapt(tiny_module, "bn")(given), expected, atol=1e-6)


@pytest.mark.parametrize("given", [[1, 2], torch.zeros(3), torch.zeros(0, 3, 8, 8), torch.zeros(2, 3, 8, 8).int()])
def test_what_is_no_batch_is_one_line(given, tiny_module):
    with pytest.raises(UserError, match="a batch"):
        fedctta.adapt(tiny_module, "bn")(given)


def test_a_saved_state_goes_on_as_if_nothing_had_been(tiny_module, tmp_path):
    model, again = (
        fedctta.adapt(tiny_module, "eata", threshold=0.9, images=8, source_images=torch.rand(8, 3, 8, 8))
        for _ in range(2)
    )
    first, *rest = batches()
    model(first)
    model.save(tmp_path / "state.safetensors")
    again.load(tmp_path / "state.safetensors")
    assert again.health.batches == 1
    for x in rest:
        assert torch.equal(model(x), again(x))


def test_a_state_serves_no_other_method_or_model(tiny_module, tmp_path):
    path = tmp_path / "state.safetensors"
    model = fedctta.adapt(tiny_module, "bn", momentum=0.5)
    with pytest.raises(UserError, match="no state at"):
        model.load(path)
    model.save(path)
    with pytest.raises(UserError, match=r"adapt the module with 'bn', momentum=0\.5"):
        fedctta.adapt(tiny_module, "bn").load(path)
    with torch.no_grad():
        tiny_module[0].bias += 1
    with pytest.raises(UserError, match="another model or of other weights"):
        fedctta.adapt(tiny_module, BatchStatistics(0.5)).load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="holds no state"):
        model.load(path)


def test_a_book_whose_rows_have_another_length_is_refused(tiny_module, tmp_path):
    """As one of a version whose looks had fewer numbers."""
    path = tmp_path / "state.safetensors"
    model = fedctta.adapt(tiny_module, "recall")
    model(batches()[0])
    now = model.adaptation
    tensors = now.state()
    shorter = tensors | {"private.part": tensors["private.part"][:, :-4]}
    write_state(path, now.network, now.adapter, shorter)
    with pytest.raises(UserError, match="is a state of another version of this method: begin with a new one"):
        model.load(path)


def test_a_copy_goes_its_own_way(tiny_module):
    model = fedctta.adapt(tiny_module, "norm-ema")
    x, y, _ = batches()
    model(x)
    twin = copy.deepcopy(model)
    expected = copy.deepcopy(model)(y)
    twin(x)
    assert torch.equal(model(y), expected)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("method", ["none", "bn", "tent", "eata", "recall"])
def test_a_dense_model_predicts_series_images_and_volumes(method, axes):
    torch.manual_seed(0)
    convolution, norm = getattr(nn, f"Conv{axes}d"), getattr(nn, f"BatchNorm{axes}d")
    module = nn.Sequential(convolution(2, 4, 3, padding=1), norm(4), nn.ReLU(), convolution(4, 3, 1)).eval()
    x = torch.rand(3, 2, 5, 6, 7)[(..., *[0] * (3 - axes))]
    if method == "recall" and axes == 3:
        with pytest.raises(UserError, match="looks at images"):
            fedctta.adapt(module, method, dense=True)(x)
        return
    model = fedctta.adapt(module, method, dense=True, **({"fisher": 0} if method == "eata" else {}))
    logits = model(x)
    assert logits.shape == module(x).shape
    assert model.adaptation.network.has_features
    if method == "none":
        torch.testing.assert_close(logits, module(x))
    assert model(x).isfinite().all()


def test_a_dense_model_gives_images():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1)).eval()
    model = fedctta.adapt(module, "none", dense=True)
    x = torch.rand(2, 3, 6, 8)
    with torch.no_grad():
        assert torch.allclose(model(x), module(x), atol=1e-6)


def test_tables_adapt_too():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    model = fedctta.adapt(module, "tent")
    assert model(np.random.default_rng(0).normal(size=(8, 5))).shape == (8, 3)


@pytest.mark.parametrize("name", ["bn", "tent", "cotta"])
def test_a_run_with_one_client_counts_the_same_right_predictions(name, domains, tiny_module):
    asked = {"stream": "iid", "clients": 1, "batch": 4, "slots": 3, "device": "cpu", "lift": "loop"}
    (record,) = fedctta.run(dataset=domains, model=tiny_module, adapter=name, aggregator="local", **asked)
    experiment = single({**asked, "dataset": "domains", "model": "mine", "adapter": name, "aggregator": "local"})
    stream = choose_parts(experiment, torch.device("cpu"), Cache({"dataset": domains, "model": tiny_module})).stream
    model, right = fedctta.adapt(tiny_module, name, guard="off"), []
    for t in range(len(stream)):
        slot = stream.slot(t)
        right.append(int((model(slot.images[0]).argmax(1).numpy() == slot.labels[0]).sum()))
    assert right == record.correct[:, 0].tolist()


def test_where_no_method_fits_options_may_be_idle():
    with pytest.warns(UserWarning, match="this model has none"):
        model = fedctta.adapt(nn.Linear(4, 3), seed=7, window=3, predict="before")
    assert model(torch.rand(2, 4)).shape == (2, 3)


def test_whole_numbers_may_be_text(tiny_module):
    model = fedctta.adapt(tiny_module, "cotta", window="4", check="5", seed="1", guard="off")
    now = model.adaptation
    assert (now.window.size, now.watchman.every, now.seed) == (4, 5, 1)


def test_source_images_that_the_model_cannot_take_are_one_line(tiny_module):
    model = fedctta.adapt(tiny_module, "eata", images=8, source_images=torch.rand(8, 1, 8, 8))
    for _ in range(2):
        with pytest.raises(UserError, match="source_images do not fit: the model cannot take images of 1x8x8"):
            model(batches()[0])
    assert model.health.batches == 0


@pytest.mark.parametrize("path", ["", "/", None, 3])
def test_a_path_that_names_no_file_is_refused(path, tiny_module):
    model = fedctta.adapt(tiny_module, "bn")
    for use in (model.save, model.load):
        with pytest.raises(UserError, match=r"a state's path is .*: give that of a file"):
            use(path)
