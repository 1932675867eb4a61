from __future__ import annotations

import io
import json

from rich.console import Console

from fedctta.fleet.processes.summary import scores, summary


def write(folder, device, rows):
    place = folder / "devices" / device
    place.mkdir(parents=True)
    (place / "predictions.jsonl").write_text("".join(json.dumps({"id": "x", **row}) + "\n" for row in rows))


def test_devices_are_counted_in_order_and_together(tmp_path):
    write(tmp_path, "device-10", [{"batch": 4, "class": 2}])
    write(tmp_path, "device-2", [{"batch": k // 2, "class": k, "label": 1} for k in range(4)])
    told = {"accuracy": 0.271, "alarms": [{"batch": 3}]}
    (tmp_path / "devices" / "device-2" / "health.json").write_text(json.dumps(told))
    found = dict(scores(tmp_path))
    assert list(found) == ["device-2", "device-10"]
    assert found["device-2"] == (2, 4, 4, 1)
    assert found["device-10"].accuracy == "not known"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary(tmp_path, {"round": 3, "bytes_up": 2048, "bytes_down": 1024, "refused": 1}))
    text = console.export_text()
    assert "3 rounds; 2 KB up, 1 KB down; 1 refused" in text
    assert "25.0 %" in text
    (line,) = (line for line in text.splitlines() if line.startswith("device-2 "))
    assert line.split() == ["device-2", "2", "4", "25.0", "%", "27.1", "%", "1"]


def test_nothing_was_predicted(tmp_path):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary(tmp_path, {}))
    assert "0 rounds" in console.export_text()
