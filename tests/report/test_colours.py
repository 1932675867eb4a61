from __future__ import annotations

from fedctta.report.colours import pens


def test_common_methods_keep_their_colour_in_any_company() -> None:
    alone, together = pens(["FedCTTA"]), pens(["Local", "x", "y", "FedCTTA"])
    assert alone["FedCTTA"] == together["FedCTTA"]


def test_no_two_of_sixteen_methods_look_the_same() -> None:
    names = ["No-Adapt", "Local", "FedAvg", "FedCTTA", "Oracle (upper bound)", *(f"m{k}" for k in range(11))]
    assert len(set(pens(names).values())) == 16
    assert len(pens(f"m{k}" for k in range(50))) == 50
