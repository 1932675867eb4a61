"""The text format of Prometheus, read by a parser of its grammar."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pretended_state import NAMES, write_state

from fedctta.fleet.monitor.metrics import METRICS, write_metrics
from fedctta.fleet.monitor.observation import Observer

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana-dashboard.json"
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text):
    """Read the text format 0.0.4: samples by name and labels, and the type of every name."""
    assert text.endswith("\n")
    samples, types, helps, current = {}, {}, {}, None
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            where = {"HELP": helps, "TYPE": types}[what]
            assert name not in where, "told twice"
            where[name], current = rest, name
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        assert name == current, "samples of one name stand together, after its TYPE"
        found, rest = {}, (labels or "{}")[1:-1]
        while rest:
            label = LABEL.match(rest)
            assert label is not None, rest
            assert label[1] not in found
            found[label[1]] = re.sub(r"\\.", lambda match: ESCAPED[match[0]], label[2])
            rest = rest[label.end() :]
        key = (name, frozenset(found.items()))
        assert key not in samples, "a series twice"
        samples[key] = float(value)
    assert helps.keys() == types.keys()
    assert set(types.values()) <= {"counter", "gauge"}
    return samples, types


def of(samples, name, **labels):
    return samples[f"fedctta_{name}", frozenset(labels.items())]


def test_all_figures_are_there_and_names_survive(tmp_path):
    samples, types = parse(write_metrics(Observer(write_state(tmp_path)).observe()))
    assert types.keys() == {f"fedctta_{metric.name}" for metric in METRICS}
    assert of(samples, "rounds_closed_total") == 5
    assert of(samples, "bytes_total", direction="up") == 2048
    assert of(samples, "devices", state="online") == 2
    assert of(samples, "devices", state="quarantined") == 1
    assert of(samples, "audit_intact") == 1
    assert of(samples, "device_estimated_accuracy", device=NAMES[1]) == 0.61
    assert of(samples, "device_online", device=NAMES[3]) == 0
    assert of(samples, "device_domain", device=NAMES[2]) == 2
    assert of(samples, "device_info", device=NAMES[3], version="0.8.0", model="resnet8") == 1
    with pytest.raises(KeyError):  # which has told nothing of its health
        of(samples, "device_alarms_total", device="device-0")


def test_counters_are_called_so(tmp_path):
    assert all(metric.name.endswith("_total") == (metric.kind == "counter") for metric in METRICS)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\\nb", 'x",y="z', "{}", "é€", "\\"])
def test_any_name_can_be_a_label(name):
    samples, _ = parse(write_metrics({"round": 1, "nodes": [{"device": name, "online": True}]}))
    assert of(samples, "device_online", device=name) == 1


@pytest.mark.parametrize("seen", [{}, {"audit": {"lines": 0, "breaks": []}}])
def test_without_a_status_there_are_no_figures(seen):
    assert write_metrics(seen).strip() == ""


def test_a_broken_log_and_a_silent_server_are_figures(tmp_path):
    state = write_state(tmp_path, written=0.0)
    (state / "audit.head").unlink()
    samples, _ = parse(write_metrics(Observer(state).observe()))
    assert of(samples, "audit_intact") == 0
    assert of(samples, "server_silent_seconds") > 1e6


def test_the_dashboard_uses_only_figures_that_exist():
    content = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in content["panels"] for target in panel.get("targets", [])]
    asked += [variable["query"] for variable in content["templating"]["list"] if variable["type"] == "query"]
    used = {name for expression in asked for name in re.findall(r"\bfedctta_\w+", str(expression))}
    known = {f"fedctta_{metric.name}" for metric in METRICS}
    assert used == known
    assert all(expression.count("(") == expression.count(")") for expression in asked)
    places = [tuple(panel["gridPos"].values()) for panel in content["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in content["panels"]}) == len(places)
