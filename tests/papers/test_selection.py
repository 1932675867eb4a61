"""Runs are chosen by the values of their keys."""

from __future__ import annotations

import pytest

from fedctta.errors import UserError
from fedctta.papers.selection import select
from fedctta.runs.settings import Experiment

RUNS = [
    Experiment(dataset="shapes-c", adapter=adapter, batch=batch, weights=weights)
    for adapter in ("bn", "tent", "cotta")
    for batch, weights in ((1, "a+b"), (10, "auto"))
]


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ([], [0, 1, 2, 3, 4, 5]),
        (["adapter=bn,tent"], [0, 1, 2, 3]),
        (["adapter!=bn,tent"], [4, 5]),
        (["adapter!=cotta", "batch=10"], [1, 3]),
        (["weights=a+b", "adapter=bn"], [0]),
    ],
)
def test_only_runs_that_all_words_allow(words, places):
    assert select(RUNS, words) == [RUNS[k] for k in places]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["adapter"], "write for example --only batch=10,50"),
        (["adapter="], "write for example"),
        (["adaptor=bn"], "unknown key in --only 'adaptor': did you mean adapter?"),
        (["parameters=bn"], "unknown key in --only 'parameters'"),
        (["adapter=bnn"], "unknown adapter in --only 'bnn': did you mean bn?"),
        (["batch=1,10"], "--only batch=1,10 has no effect, since every run has it"),
        (["adapter=bn", "adapter=tent"], "--only adapter=bn --only adapter=tent leaves no run"),
        (["adapter!=bn,tent,cotta"], "leaves no run"),
    ],
)
def test_words_that_choose_nothing_are_refused(words, told):
    with pytest.raises(UserError, match=told.replace("?", r"\?")):
        select(RUNS, words)
