"""Data that cannot be had are asked for once."""

from __future__ import annotations

from fedctta.errors import UserError
from fedctta.papers.missing import Lacking, Missing
from fedctta.runs.settings import Experiment


class Shelf:
    """A cache that has one data set."""

    def __init__(self):
        self.asked = []

    def data(self, experiment):
        self.asked.append(experiment.dataset)
        if experiment.dataset != "shapes-c":
            raise UserError(f"no {experiment.dataset} here")


def test_what_is_lacking_is_asked_for_once():
    shelf, lacking = Shelf(), Lacking()
    there, gone = Experiment(dataset="shapes-c"), Experiment(dataset="cifar10-c")
    for _ in range(2):
        assert lacking.missing(there, shelf) is None
        assert lacking.missing(gone, shelf) == Missing("not available: no cifar10-c here")
    assert shelf.asked.count("cifar10-c") == 1


def test_other_weights_are_asked_for_again():
    shelf, lacking = Shelf(), Lacking()
    for weights in ("photo", "sketch"):
        assert lacking.missing(Experiment(dataset="pacs", weights=weights), shelf) is not None
    assert shelf.asked == ["pacs", "pacs"]  # which images are held out depends on them
