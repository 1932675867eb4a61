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
from fedctta.adapters.tent import Tent
from fedctta.core.clients import by_loop
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.registry import parameter_types
from fedctta.runs.build import choose_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single


@pytest.mark.parametrize("predict", ["after", "before"])
@pytest.mark.parametrize("name", adapters.classes())
def test_predictions_are_those_of_a_run_with_one_client(name, predict, tiny_module, federation, batches, quick):
    words = quick(name)
    images = words.pop("source_images")
    adapter = adapters.create(name, words)
    if predict == "before" and adapter.predicts_alike(communicates=False):
        pytest.skip("the same as after")
    one = federation(Network(tiny_module), adapter, "local", clients=1, lift=by_loop)
    one = replace(one, predict=predict, batch=4)
    model = fedctta.adapt(tiny_module, name, predict=predict, source_images=images, guard="off", **words)
    state, there = one.start(), torch.ones(1, dtype=torch.bool)
    for t, x in enumerate(batches()):
        with torch.no_grad():
            state, outcome = one.play(state, t, x[None], there, None)
        assert torch.equal(model(x), outcome.logits[0])


def test_no_parameter_of_a_method_is_hidden_by_a_word_of_adapt():
    words = set(inspect.signature(fedctta.adapt).parameters)
    for name, cls in adapters.classes().items():
        assert not words & set(parameter_types(cls)), name


def test_one_pass_gives_the_numbers_of_two(tiny_module, batches):
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


def test_a_layer_that_is_called_twice_takes_two_passes(batches):
    module = Twice()
    one, two = (fedctta.adapt(module, "bn", one_pass=many) for many in (True, False))
    for x in batches():
        assert torch.equal(one(x), two(x))
    assert one.adaptation._one_pass is False


def test_a_method_is_a_name_with_parameters_or_an_object(tiny_module, batches):
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


def test_the_module_stays_as_it_is(tiny_module, batches):
    before = copy.deepcopy(tiny_module.state_dict())
    model = fedctta.adapt(tiny_module.train(), "grad", lr=0.1)
    for x in batches():
        model(x)
    assert model.source is tiny_module
    assert tiny_module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in tiny_module.state_dict().items())


def test_training_mode_gradients_and_inference_mode_change_no_number(tiny_module, batches):
    x = batches()[0]
    expected = fedctta.adapt(tiny_module, "tent")(x)
    assert not expected.requires_grad
    assert torch.equal(fedctta.adapt(tiny_module, "tent").train()(x), expected)
    with torch.inference_mode():
        assert torch.equal(fedctta.adapt(tiny_module, "tent")(x * 1), expected)


def test_reset_begins_anew(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "roid")
    first = [model(x) for x in batches()]
    model.reset()
    assert model.health.batches == 0
    assert all(torch.equal(model(x), logits) for x, logits in zip(batches(), first, strict=True))


def test_a_frozen_model_predicts_and_stays(tiny_module, batches):
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
def test_a_batch_that_is_not_finite_changes_nothing(name, poison, tiny_module, batches):
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


def test_uint8_images_and_arrays_are_taken(tiny_module):
    images = torch.randint(0, 256, (4, 8, 8, 3), dtype=torch.uint8)
    expected = fedctta.adapt(tiny_module, "bn")(images.movedim(-1, 1).float() / 255)
    for given in (images, images.numpy(), images.movedim(-1, 1), images.movedim(-1, 1).double().numpy() / 255):
        assert torch.allclose(fedctta.adapt(tiny_module, "bn")(given), expected, atol=1e-6)


@pytest.mark.parametrize("given", [[1, 2], torch.zeros(3), torch.zeros(0, 3, 8, 8), torch.zeros(2, 3, 8, 8).int()])
def test_what_is_no_batch_is_one_line(given, tiny_module):
    with pytest.raises(UserError, match="a batch"):
        fedctta.adapt(tiny_module, "bn")(given)


def test_a_copy_goes_its_own_way(tiny_module, batches):
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


def test_source_images_that_the_model_cannot_take_are_one_line(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "eata", images=8, source_images=torch.rand(8, 1, 8, 8))
    for _ in range(2):
        with pytest.raises(UserError, match="source_images do not fit: the model cannot take images of 1x8x8"):
            model(batches()[0])
    assert model.health.batches == 0
