"""Every adapter on a module of several inputs, of words and masks: it runs, or one line says why not."""

from __future__ import annotations

import re
from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedctta
from fedctta.adapters import adapters
from fedctta.errors import UserError

PARAMETERS = {"eata": {"images": 4}, "fedthe": {"images": 4}, "atp": {"rates": "0.01"}, "t3a": {"supports": 3}}
REFUSALS = re.compile(
    r"adapter '[a-z0-9-]+' ("
    r"(works on colour pictures \[batch, 3, height, width\]|looks at images \[.*\] or series \[.*\])"
    r" and a batch has input_ids of 6 and attention_mask of 6"
    r"|needs BatchNorm layers and this model has none)"
    r": use (recall\.inner=tent or )?adapter [a-z0-9-]+(, [a-z0-9-]+)* or [a-z0-9-]+"
)
RUN = {  # those that adapt to words; with BatchNorm these and more
    "LayerNorm": {"none", "tent", "grad", "shot", "eata", "eta", "rdumb", "sar", "t3a", "lame", "bpa", "atp", "cola"},
    "BatchNorm": {"bn", "norm-alpha", "norm-ema", "dua"},
}


class Transformer(nn.Module):
    """One attention block over words, and a classifier of their mean."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.before = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.after = nn.LayerNorm(8) if norm == "LayerNorm" else nn.BatchNorm1d(8)
        self.classifier = nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.before(self.words(input_ids))
        x = x + self.attention(x, x, x, key_padding_mask=mask == 0, need_weights=False)[0]
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return SimpleNamespace(logits=self.classifier(self.after(pooled)), loss=None)


def words(seed, count=4):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 11, (count, 6), generator=generator)
    mask = torch.ones(count, 6, dtype=torch.int64)
    mask[0, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def make(norm="LayerNorm"):
    torch.manual_seed(0)
    return Transformer(norm).eval()


@pytest.mark.parametrize("norm", ["LayerNorm", "BatchNorm"])
@pytest.mark.parametrize("name", adapters.classes())
def test_every_adapter_takes_words_or_says_why_not(name, norm):
    module, parameters, wanted = make(norm), PARAMETERS.get(name, {}), RUN["LayerNorm"] | RUN[norm]
    studies = adapters.create(name, parameters).source_images
    refusal = ""
    try:
        model = fedctta.adapt(module, name, source_images=words(9) if studies else None, **parameters)
        logits = [model(words(seed)) for seed in range(3)]
    except UserError as error:
        refusal = str(error)
    assert (name in wanted) == (not refusal), refusal
    if refusal:
        assert REFUSALS.fullmatch(refusal)
    else:
        assert all(rows.shape == (4, 3) and rows.isfinite().all() for rows in logits)
        assert model.health.batches == 3
        assert model.health.accuracy is not None  # checked, although words have no mirror


def test_a_batch_comes_in_any_of_the_usual_forms():
    batch, module = words(0), make()
    expected = fedctta.adapt(module, "tent")(batch)
    with torch.no_grad():
        assert not torch.equal(expected, module(**batch).logits)
    model = fedctta.adapt(module, "tent")
    assert torch.equal(model(**batch), expected)
    for given in (tuple(batch.values()), UserDict(batch), {n: t.numpy() for n, t in batch.items()}):
        assert torch.equal(fedctta.adapt(module, "tent")(given), expected)
    assert torch.equal(fedctta.adapt(module, "tent")(*batch.values()), expected)


def test_logits_are_picked_by_a_function_also_after_a_move():
    class Bare(Transformer):
        def forward(self, input_ids, attention_mask=None):
            logits = super().forward(input_ids, attention_mask).logits
            return {"hidden": logits + 1, "scores": logits}

    torch.manual_seed(0)
    module = Bare("LayerNorm").eval()
    with pytest.raises(UserError, match="say by output="):
        fedctta.adapt(module, "tent")(words(0))
    model = fedctta.adapt(module, "tent", output=lambda found: found["scores"])
    assert torch.equal(model(words(0)), fedctta.adapt(make(), "tent")(words(0)))
    assert model.to(torch.float64)(words(1)).dtype == torch.float64


def test_words_one_by_one_are_seen_among_the_last():
    module = make("BatchNorm")
    model = fedctta.adapt(module, "tent", window=4, guard="off")
    batch = words(0, 4)
    logits = [model({name: tensor[[k]] for name, tensor in batch.items()}) for k in range(4)]
    assert torch.equal(logits[3], fedctta.adapt(module, "tent", guard="off")(batch)[-1:])
    longer = {name: torch.cat([tensor, tensor], 1) for name, tensor in words(1, 1).items()}
    assert model(longer).shape == (1, 3)
    assert model.health.batches == 1


class Mixed(nn.Module):
    """Takes a picture, numbers and a place in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.picture, self.norm, self.numbers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(2, 4)
        self.places, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, picture, numbers, place):
        return self.head(self.norm(self.picture(picture)).mean((2, 3)) + self.numbers(numbers) + self.places(place))


def mixed(seed, count=6):
    random = np.random.default_rng(seed)
    return {
        "picture": random.integers(0, 256, (count, 8, 8, 3), np.uint8),
        "numbers": random.normal(size=(count, 2)),
        "place": random.integers(0, 5, count),
    }


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_pictures_numbers_and_integers_come_together_and_poison_changes_nothing(poison):
    torch.manual_seed(0)
    module = Mixed().eval()
    model, sound = fedctta.adapt(module, "bn"), fedctta.adapt(module, "bn")
    assert torch.equal(model(mixed(0)), sound(mixed(0)))
    bad = mixed(1)
    bad["numbers"][2, 1] = poison
    assert model(bad)[[0, 1, 3, 4, 5]].isfinite().all()
    assert model.health.skipped == 1
    assert torch.equal(model(mixed(2)), sound(mixed(2)))
    picture, numbers, place = mixed(3).values()
    floats = torch.from_numpy(picture).movedim(-1, 1).float() / 255
    assert torch.allclose(model(picture, numbers, place), sound((floats, numbers, place)), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "a batch has no tensor"),
        ({"input_ids": torch.zeros(2, 6, dtype=torch.int64), "attention_mask": torch.ones(3, 6)}, "as many rows"),
        ({"input_ids": torch.zeros(0, 6, dtype=torch.int64)}, "at least one"),
        ({"input_ids": "good morning"}, "'input_ids' of a batch is a str: give a tensor"),
        ({"input_ids": torch.zeros(2, 6, dtype=torch.int64), "labels": None}, "'labels' of a batch is a NoneType"),
        ({"input_ids": torch.tensor(3)}, "is a single number"),
        ({"ids": torch.zeros(2, 6, dtype=torch.int64)}, "cannot take ids of 6"),
        (torch.zeros(2, 6, dtype=torch.int64), "come in a tuple or a dictionary"),
    ],
)
def test_what_is_no_batch_is_one_line(given, line):
    with pytest.raises(UserError, match=line) as caught:
        fedctta.adapt(make(), "tent")(given)
    assert "\n" not in str(caught.value)


def test_arguments_with_and_without_names_are_not_mixed():
    batch = words(0)
    with pytest.raises(UserError, match="by name, or none"):
        fedctta.adapt(make(), "tent")(batch["input_ids"], attention_mask=batch["attention_mask"])


LATER = {
    "one colour": (torch.rand(4, 1, 32, 32),),
    "too small": (torch.rand(4, 3, 1, 1),),
    "an axis more": (torch.rand(4, 3, 2, 8, 8),),
    "a table": (torch.rand(4, 10),),
    "a tuple": ((torch.rand(4, 3, 32, 32), torch.rand(4, 3, 32, 32)),),
    "two arguments": (torch.rand(4, 3, 32, 32), torch.rand(4, 3, 32, 32)),
    "a name": {"images": torch.rand(4, 3, 32, 32)},
}


@pytest.mark.parametrize("name", [None, "bn", "tent", "recall", "roid"])
@pytest.mark.parametrize("given", LATER.values(), ids=LATER.keys())
def test_a_later_batch_of_a_form_that_does_not_fit_is_one_line_and_changes_nothing(name, given):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    model, sound = fedctta.adapt(module, name), fedctta.adapt(module, name)
    x, y = torch.rand(2, 4, 3, 32, 32)
    assert torch.equal(model(x), sound(x))
    for _ in range(2):
        with pytest.raises(UserError, match=r"cannot take|works on colour|looks at images") as caught:
            model(**given) if isinstance(given, dict) else model(*given)
        assert "\n" not in str(caught.value)
    assert torch.equal(model(y), sound(y))


def test_a_later_batch_without_one_of_its_inputs_is_one_line():
    model = fedctta.adapt(Mixed().eval(), "tent")
    model(mixed(0))
    with pytest.raises(UserError, match="cannot take picture of 3x8x8 and numbers of 2"):
        model({name: tensor for name, tensor in mixed(1).items() if name != "place"})


@pytest.mark.parametrize("rows", [4, 1])
def test_values_that_the_model_cannot_take_are_one_line_and_change_nothing(rows):
    """A word beyond the last, in a batch of the usual form: alone, and among the last ones in a window."""
    model, sound = (fedctta.adapt(make("BatchNorm"), "bn", window=4, guard="off") for _ in range(2))
    bad = words(1, rows)
    bad["input_ids"][0, 2] = 11
    for each in (model, sound):
        each(words(0, rows))
    own = model.client.own
    line = "cannot take input_ids of 6 and attention_mask of 6: index out of range.*; leave this batch out, or mend its"
    with pytest.raises(UserError, match=line):
        model(bad)
    assert model.client.own is own
    for seed in range(2, 7):
        assert torch.equal(model(words(seed, rows)), sound(words(seed, rows)))


def test_an_error_of_a_method_is_told_as_it_is(tiny_module, monkeypatch):
    model = fedctta.adapt(tiny_module, "bn")
    model(torch.rand(4, 3, 8, 8))

    def fail(*_):
        raise RuntimeError("a mistake in the method")

    monkeypatch.setattr(type(model.adapter), "adapt_and_predict", fail)
    with pytest.raises(RuntimeError, match="a mistake in the method"):
        model(torch.rand(4, 3, 8, 8))


def test_an_image_that_does_not_fit_leaves_the_window_as_it_is(tiny_module):
    model, sound = (fedctta.adapt(tiny_module, "tent", window=3) for _ in range(2))
    images = torch.rand(3, 1, 3, 32, 32)
    for k, image in enumerate(images):
        logits = model(image)
        assert torch.equal(logits, sound(image))
        if k < 2:
            with pytest.raises(UserError, match="cannot take images of 1x32x32"):
                model(torch.rand(1, 1, 32, 32))
    assert model.health.batches == 1


@pytest.mark.parametrize("size", [1, 4])
def test_later_pictures_beyond_0_and_1_are_refused_like_first_ones(size, tiny_module):
    model = fedctta.adapt(tiny_module, "roid")
    x = torch.rand(4, 3, 32, 32)
    model(x)
    with pytest.raises(UserError, match="with values from 0 to 1"):
        model(x[:size] * 255)
    assert model.health.batches == 1
    assert model.adaptation.window.images is None or not bool((model.adaptation.window.images > 1).any())


def test_a_form_is_checked_once(tiny_module, monkeypatch):
    checked = []
    monkeypatch.setattr("fedctta.online.adaptation.check_first_batch", lambda *given: checked.append(given[-1].shape))
    model = fedctta.adapt(tiny_module, "bn")
    for side in (32, 32, 16, 32, 16):
        model(torch.rand(4, 3, side, side))
    assert checked == [(4, 3, 32, 32), (4, 3, 16, 16)]


class ByName(nn.Module):
    """Takes its pictures by name, as the models of transformers do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))

    def forward(self, pixel_values=None, labels=None):
        return SimpleNamespace(logits=self.body(pixel_values))


@pytest.mark.parametrize("method", [None, "cotta"])
def test_pictures_by_name_are_pictures(method):
    torch.manual_seed(0)
    module, x = ByName(), torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    parameters = {} if method is None else {"views": 2}
    by_name, by_place = (fedctta.adapt(module, method, **parameters) for _ in range(2))
    for given in ({"pixel_values": x}, UserDict(pixel_values=x.numpy())):
        assert torch.equal(by_name(given), by_place(x))
    assert torch.equal(by_name(pixel_values=x), by_place(x))
    assert by_name.adapter.name == (method or "recall")


def test_other_names_reach_the_module():
    class OnlyByName(ByName):
        def forward(self, labels=None, *, pixel_values=None):
            return super().forward(pixel_values)

    x = torch.rand(4, 3, 8, 8)
    torch.manual_seed(0)
    module = OnlyByName().eval()
    torch.testing.assert_close(fedctta.adapt(module, "none")(pixel_values=x), module(pixel_values=x).logits)
