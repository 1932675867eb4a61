"""A model that adapts, in every precision: made so, cast, and moved."""

from __future__ import annotations

import copy

import pytest
import torch

import fedctta
from fedctta.adapters import adapters
from fedctta.errors import UserError


@pytest.mark.parametrize("name", adapters.classes())
def test_casting_moves_the_model_and_not_the_module(name, tiny_module, batches, quick):
    model = fedctta.adapt(tiny_module, name, **quick(name))
    model(batches()[0])
    kinds = {key: tensor.dtype for key, tensor in model.client.private.items()}
    model.to(torch.float64)
    assert model(batches()[1]).dtype == torch.float64
    for key, tensor in model.client.private.items():
        assert tensor.dtype == (torch.float64 if kinds[key].is_floating_point else kinds[key]), key
    assert next(model.parameters()).dtype == torch.float64
    assert next(tiny_module.parameters()).dtype == torch.float32
    assert model.health.skipped == 0


def test_a_source_that_has_no_copy_by_now_is_told_when_the_model_is_cast(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "tent")
    tiny_module.last = tiny_module(batches()[0])  # of a pass with gradients, as a hook may keep it
    with pytest.raises(UserError, match="the model keeps the tensor 'last' of a pass with gradients"):
        model.double()
    assert model(batches()[0]).dtype == torch.float32


@pytest.mark.parametrize("name", adapters.classes())
def test_a_model_in_float64_gives_the_numbers_of_one_in_float32_but_for_rounding(name, tiny_module, batches, quick):
    single, double = (
        fedctta.adapt(module, name, **quick(name)) for module in (tiny_module, copy.deepcopy(tiny_module).double())
    )
    for x in batches():
        torch.testing.assert_close(double(x).float(), single(x), rtol=1e-2, atol=1e-2)
    assert double.health.skipped == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", adapters.classes())
def test_a_model_in_16_bits_is_adapted_or_refused_in_one_line(name, dtype, tiny_module, tmp_path, batches, quick):
    short, words = copy.deepcopy(tiny_module).to(dtype), quick(name)
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


def test_casting_changes_neither_who_answers_nor_the_healthy_state(tiny_module, batches):
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
def test_a_model_moves_to_a_gpu_and_goes_on(tiny_module, batches):
    here, there = (fedctta.adapt(tiny_module, "tent") for _ in range(2))
    for t, x in enumerate(batches()):
        if t == 1:
            there = there.to("cuda")
        assert torch.allclose(here(x), there(x).cpu(), atol=1e-4)
