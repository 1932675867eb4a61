"""How clients fared at the end, from what was noted in every round."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedctta.results.health import ADAPTED, NOBODY, SOURCE, health_of

ANSWERS = np.array([[ADAPTED, NOBODY], [SOURCE, NOBODY], [SOURCE, NOBODY], [NOBODY, NOBODY]], np.uint8)


def test_the_last_round_of_a_client_counts():
    values = np.array([[0.1, np.nan], [0.2, np.nan], [0.3, np.nan], [np.nan, np.nan]], np.float32)
    names = ("accuracy", "source_accuracy", "disagreement", "top_share", "entropy")
    first, second = health_of(ANSWERS, np.array([[0, 1]]), dict.fromkeys(names, values))
    assert first.accuracy == first.top_share == pytest.approx(0.3)
    assert first.entropy == pytest.approx(0.2)  # a mean over rounds
    assert (first.answers, first.alarms) == ("source", (1,))
    assert first.by_source == pytest.approx(2 / 3)
    assert second.accuracy is None
    assert second.entropy is None
    assert (second.answers, second.by_source, second.alarms) == ("adapted", 0.0, ())
    assert json.loads(json.dumps(first.plain()))["alarms"] == [1]
