"""A saved place comes back exactly, or is refused; Ctrl-C waits for the end of a round."""

from __future__ import annotations

import json
import signal
import threading

import pytest
import torch
from safetensors.torch import save_file

from fedctta.engine.checkpoint import load_checkpoint, postponed_interrupt, save_checkpoint
from fedctta.errors import UserError


@pytest.fixture
def tensors(device):
    generator = torch.Generator().manual_seed(0)
    state = {
        "own.weight": torch.randn(3, 4, generator=generator),
        "own.bias": torch.tensor([float("inf"), -0.0, 1e-45]),
        "memory.round": torch.tensor(7),
        "tally.finite": torch.tensor(True),
        "tally.seconds": torch.tensor(0.1, dtype=torch.float64),
        "tally.matrices": torch.zeros(0, 2, 2),
    }
    return {name: tensor.to(device) for name, tensor in state.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "a.checkpoint"


def test_what_is_saved_comes_back_bit_by_bit(path, tensors):
    save_checkpoint(path, "abc", 12, tensors)
    rounds, again = load_checkpoint(path, "abc")
    assert rounds == 12
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype, name
        assert again[name].shape == tensor.shape, name
        assert again[name].numpy().tobytes() == tensor.cpu().numpy().tobytes(), name
    assert list(path.parent.iterdir()) == [path]


def test_tensors_come_back_in_the_layout_and_order_they_had(path):
    base = torch.arange(48.0).reshape(2, 3, 2, 4)
    given = {
        "one": base,
        "again": base,
        "turned": base.transpose(1, 3),
        "part": base[:, 1],
        "spread": torch.ones(1, 3).expand(2, 3),
        "last": base.to(memory_format=torch.channels_last),
        "gaps": base.flatten()[::3],
        "single": torch.ones(1, 5).as_strided((1, 5), (7, 1)),
        "live": base.clone().requires_grad_(),
    }
    save_checkpoint(path, "abc", 0, given)
    _, again = load_checkpoint(path, "abc")
    assert list(again) == list(given)
    for name, tensor in given.items():
        assert torch.equal(again[name], tensor), name
        assert again[name].stride() == tensor.stride(), name


def test_a_newer_place_replaces_the_older_one(path, tensors):
    save_checkpoint(path, "abc", 1, tensors)
    save_checkpoint(path, "abc", 2, tensors)
    assert load_checkpoint(path, "abc")[0] == 2


def test_a_save_that_fails_leaves_the_older_place(path, tensors, monkeypatch):
    save_checkpoint(path, "abc", 1, tensors)

    def fail(arrays, part, metadata):
        part.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, "abc", 2, tensors)
    assert load_checkpoint(path, "abc")[0] == 1
    assert list(path.parent.iterdir()) == [path]


def test_the_place_of_other_settings_is_refused(path, tensors):
    save_checkpoint(path, "abc", 1, tensors)
    with pytest.raises(UserError, match="belongs to other settings: choose another --out, or run without --resume"):
        load_checkpoint(path, "abd")


@pytest.mark.parametrize("kept", [0, 1, 8, 100, -1])
def test_a_truncated_file_is_refused(path, tensors, kept):
    save_checkpoint(path, "abc", 1, tensors)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"a\.checkpoint is damaged: delete it, or run without --resume"):
        load_checkpoint(path, "abc")


@pytest.mark.parametrize(
    "header", [None, {}, {"checkpoint": "{"}, {"checkpoint": "[]"}, {"checkpoint": json.dumps({"rounds": 1})}]
)
def test_a_file_of_another_kind_is_refused(tmp_path, header):
    save_file({"x": torch.zeros(1)}, tmp_path / "other", metadata=header)
    with pytest.raises(UserError, match="is damaged"):
        load_checkpoint(tmp_path / "other", "abc")


def test_the_first_interrupt_waits_and_the_second_does_not():
    before = signal.getsignal(signal.SIGINT)
    with postponed_interrupt() as interrupt:
        assert not interrupt.asked
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_old_answer_to_an_interrupt_returns_after_a_failure():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="in the round"), postponed_interrupt():
        raise ValueError("in the round")
    assert signal.getsignal(signal.SIGINT) is before


def test_runs_do_not_share_an_interrupt():
    with postponed_interrupt():
        signal.raise_signal(signal.SIGINT)
    with postponed_interrupt() as interrupt:
        assert not interrupt.asked


def test_in_another_thread_nothing_is_postponed():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with postponed_interrupt() as interrupt:
            seen.append((interrupt.asked, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
