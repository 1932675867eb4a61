"""Small presets on data that the package draws, in place of those of the papers."""

from __future__ import annotations

import pytest

from fedctta.papers import campaign, pages, tables

ONE = """
title = "One"
paper = "Somebody (2026), Table 1"
seeds = 2
run = { dataset = "shapes-c", domains = "fog+contrast", clients = 2, slots = 2, batch = 5, device = "cpu" }
quick = { slots = 1 }
note = "A note."

[[claim]]
says = "FedAvg is best."
holds = "no"
here = "It is not."

[[panel]]
name = "means"
columns.IID = { stream = "iid" }
rows."No-Adapt" = { adapter = "none" }
rows.FedAvg = { aggregator = "fedavg" }
published.FedAvg = [50]

[[panel]]
name = "who"
seeds = 1
figure = "matrices"
columns.IID = { stream = "iid" }
rows.FedAvg = { aggregator = "fedavg" }
"""

TWO = """
title = "Two"
run = { dataset = "shapes-c", domains = "fog+contrast", clients = 2, slots = 2, batch = 5, device = "cpu" }

[[panel]]
name = "domains"
by = "domain"
columns.IID = { stream = "iid" }
rows.FedAvg = { aggregator = "fedavg" }
rows.Local = { aggregator = "local" }
"""


@pytest.fixture
def presets(tmp_path, monkeypatch):
    """Give two presets, `one` and `two`, which share a cell, as all that there are."""
    places = {}
    for name, text in (("one", ONE), ("two", TWO)):
        places[name] = tmp_path / f"{name}.toml"
        places[name].write_text(text)
    for module in (tables, campaign, pages):
        monkeypatch.setattr(module, "published", lambda: places)
    monkeypatch.chdir(tmp_path)
    return places
