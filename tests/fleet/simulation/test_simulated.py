from __future__ import annotations

import numpy as np
import pytest

from fedctta.errors import UserError
from fedctta.fleet.simulation.simulated import one_client, open_stream, parse_stream

WORDS = "dataset=shapes-c,domains=fog+contrast,niid.clusters=2,clients=4,slots=2"


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path_factory.getbasetemp() / "fleet-home"))


def test_a_client_sees_just_what_it_sees_in_a_simulation():
    stream = open_stream(parse_stream(WORDS, 5)[0])
    batches = list(one_client(f"{WORDS},client=2", 5, 0))
    assert len(batches) == len(stream) == 4
    for t, batch in enumerate(batches):
        np.testing.assert_array_equal(batch.images, stream.slot(t).images[2])
        assert list(batch.labels) == stream.slot(t).labels[2].tolist()
        assert batch.ids == tuple(f"{t}/{k}" for k in range(5))


def test_images_that_fill_up_a_batch_carry_no_label(monkeypatch, tmp_path):
    images = np.zeros((7, 8, 8, 3), np.uint8)
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(7) % 2)
    words = f"dataset=arrays,folder={tmp_path},stream=iid,clients=2,client=1"
    labels = [label for batch in one_client(words, 2, 0) for label in batch.labels]
    assert sum(label is None for label in labels) == 2  # one of each domain: a client has three or four images
    assert sum(label is not None for label in labels) == 6


@pytest.mark.parametrize(("done", "first", "left"), [(5, "1/0", 15), (7, "1/2", 13), (19, "3/4", 1), (20, None, 0)])
def test_it_goes_on_where_it_stopped(done, first, left):
    batches = list(one_client(f"{WORDS},client=2", 5, done))
    assert sum(len(batch.ids) for batch in batches) == left
    assert not batches or batches[0].ids[0] == first


def test_a_stream_needs_no_model(monkeypatch):
    def fail(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("fedctta.runs.cache.load_module", fail)
    assert open_stream(parse_stream(f"{WORDS},model=nowhere:make", 5)[0]).clients == 4


def test_data_with_a_class_for_every_pixel_are_refused():
    with pytest.raises(UserError, match="scenes has a class for every pixel"):
        one_client("dataset=scenes,clients=2,niid.clusters=2,slots=1,client=0", 2, 0)


def test_a_client_that_is_not_there_is_told():
    with pytest.raises(UserError, match="use 0 to 3"):
        one_client(f"{WORDS},client=4", 5, 0)
