"""The files of a server whose devices have names that are also markup."""

from __future__ import annotations

import json
import time

import numpy as np

from fedctta.files import lock, write_tensors
from fedctta.fleet.server import audit

NAMES = ["device-0", "<script>document.title = 'fooled'</script>", "[/x]", 'north "gate" \\n']


WORKING = []


def write_state(folder, at_work=True, **changes):
    """Write a state folder, in which a server is `at_work`, and return it."""
    health = {"answers": "adapted", "alarms": 1, "skipped": 2, "accuracy": 0.61, "source_accuracy": 0.5}
    nodes = [
        {
            **{"device": name, "node": str(100 + k), "online": k != 3, "refused": k, "ignored": k == 2},
            **{"health": health if k else {}, "facts": {"version": "0.8.0", "model": "resnet8"}},
            **{"last_round": 4, "domains": [k, 9] if k else []},
        }
        for k, name in enumerate(NAMES)
    ]
    line = {"time": 1.0, "seconds": 2.5, "uploads": 3, "bytes_up": 10, "bytes_down": 20}
    status = {
        **{"doing": "collecting", "why": "", "run": "r", "round": 5, "rounds": 9, "seconds_of_round": 2.5},
        **{"bytes_up": 2048, "bytes_down": 4096, "refused": 6, "nodes": nodes, "expected": [*NAMES, "device-8"]},
        **{"method": {"adapter": "bn", "aggregator": "fedavg"}, "versions": {"fedctta": "0.8.0"}},
        **{"history": [{**line, "round": k} for k in range(5)], "written": time.time()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps({**status, **changes}))
    if at_work:
        WORKING.append(lock(folder / "lock", "two servers"))
    weights = np.full((4, 4), 0.25, np.float32)
    write_tensors(
        folder / "collaboration" / "000004.safetensors", {"weights": weights}, "names", NAMES, framework="numpy"
    )
    told = {"time": 1.0, "round": 3, "node": "102", "device": NAMES[2], "reason": "<img src=x onerror=alert(1)>"}
    (folder / "refusals.jsonl").write_text(json.dumps(told) + '\n{"time": 1, "rou')
    for name in NAMES:
        audit.record(folder, "admitted", device=name, node="1")
    return folder
