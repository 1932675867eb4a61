from __future__ import annotations

import io

import numpy as np
import pytest

from fedctta.data.watch import WINDOW, cut_recordings
from fedctta.errors import UserError


def recordings(*lengths, held="X"):
    """Make a file of recordings whose values count up, of persons 2 and 1 by turns, each of its own class."""
    series = [np.arange(n * 2).reshape(n, 2) + 10_000.0 * k for k, n in enumerate(lengths)]
    found = {held: series, "y": np.arange(len(lengths)) % 3, "subject": np.array([2, 1] * len(lengths))[: len(lengths)]}
    file = io.BytesIO()
    np.save(file, np.array(found, dtype=object), allow_pickle=True)
    return file.getvalue()


def test_recordings_become_windows_by_person_held_out_ones_first():
    cuts = cut_recordings(recordings(850, 420, 400))
    assert list(cuts) == ["person-01", "person-02"]
    one, two = cuts.values()
    assert one.windows.shape == (4, 2, WINDOW)
    assert (one.windows.dtype, one.labels.dtype) == (np.float32, np.int64)
    assert (one.held, one.labels.tolist()) == (1, [1] * 4)
    assert (two.held, two.labels.tolist()) == (2 + 1, [0, 0, 2, *[0] * 6, *[2] * 3])
    border = 420 * 3 // 4
    np.testing.assert_array_equal(one.windows[0, 0], 10_000 + 2 * np.arange(border, border + WINDOW))  # of the end
    np.testing.assert_array_equal(one.windows[1, 1], 10_001 + 2 * np.arange(WINDOW))  # of the beginning


def test_no_measurement_is_in_two_windows():
    values = np.concatenate([cut.windows[:, 0].ravel() for cut in cut_recordings(recordings(999, 500)).values()])
    assert len(np.unique(values)) == len(values)


class Harm:
    """Runs code where it is unpickled."""

    def __reduce__(self):
        return print, ("harm",)


@pytest.mark.parametrize("content", [b"", recordings(500, held="Z"), "harm"])
def test_what_is_no_such_file_is_refused_and_not_run(content, capsys):
    if content == "harm":
        file = io.BytesIO()
        np.save(file, np.array(Harm(), dtype=object), allow_pickle=True)
        content = file.getvalue()
    with pytest.raises(UserError, match="the recordings cannot be read"):
        cut_recordings(content)
    assert capsys.readouterr().out == ""
