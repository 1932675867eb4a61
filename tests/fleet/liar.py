"""A device that lies to its server: what it answers is spoilt as a file beside its state says at the time.

    python liar.py FOLDER <words of `fedctta`>

FOLDER/lie holds the lie's name; FOLDER/told.jsonl gets a line for every step it was asked for.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedctta.cli import main
from fedctta.fleet.device.request_handler import RequestHandler

LIES = {
    "honest": lambda p: p,
    "nan": lambda p: replace(p, arrays={n: a * np.float32("nan") for n, a in p.arrays.items()}),
    "shapes": lambda p: replace(p, arrays={n: a[:-1] for n, a in p.arrays.items()}),
    "200 MB": lambda p: replace(p, arrays={"own.all": np.zeros(200 << 20, np.uint8)}),
    "old round": lambda p: replace(p, round=p.round - 1),
}


def lie_from(folder, tell):
    """Return a desk's answer with the lie of the moment."""

    def answer(desk, request):
        reply, lie = tell(desk, request), (folder / "lie").read_text()
        if request.kind == "step":
            about = {"round": request.round, "download": request.note.get("download"), "tensors": len(request.arrays)}
            with (folder / "told.jsonl").open("a") as told:
                told.write(json.dumps({**about, "lie": lie, "kind": reply.kind}) + "\n")
        return LIES[lie](reply) if reply.kind == "upload" else reply

    return answer


if __name__ == "__main__":
    RequestHandler.answer = lie_from(Path(sys.argv.pop(1)), RequestHandler.answer)
    main()
