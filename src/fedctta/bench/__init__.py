"""What the engine costs over plain inference and saves over loops: ways to do a round, measured in one run.

    a   plain batched inference of as many images as the method passes through the network, on a GPU captured as a
        CUDA graph: the floor
    a'  on a GPU, the same launched kernel by kernel
    b   ours: the engine as `fedctta run` runs it
    c   a plain loop: one model object a client, on the device
    d   the published way: models that live on the CPU, are moved to the device and back in every step, and are
        averaged by Python loops over their state dicts

Absolute times depend on the machine; the ratios b/a, c/b and d/b are what to look at. Images and weights are random, so
neither data nor downloads are needed.
"""

from __future__ import annotations

from fedctta.bench.cells import Cell, Plan, make_plan
from fedctta.bench.folder import write
from fedctta.bench.measure import Row, Skipped, Timing, refuse_impossible, run
from fedctta.bench.table import print_rows

__all__ = ["Cell", "Plan", "Row", "Skipped", "Timing", "make_plan", "print_rows", "refuse_impossible", "run", "write"]
