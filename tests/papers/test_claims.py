from __future__ import annotations

import doctest

from fedctta.papers import claims
from fedctta.papers.claims import count_verdicts, list_claims
from fedctta.papers.tables import Claim


def test_doctests():
    assert doctest.testmod(claims).failed == 0


def test_a_claim_has_its_verdict_and_reasons():
    text = list_claims(
        [Claim("We win.", "no", "It is 3 points below.", "A guess: the weights."), Claim("It helps.", "yes")]
    )
    assert text.splitlines() == [
        "- *We win.* **Does not hold.** It is 3 points below. A guess: the weights.",
        "- *It helps.* **Holds.**",
    ]


def test_without_claims_nothing_is_counted():
    assert count_verdicts([]) == "-"
    assert count_verdicts([Claim("a", "open"), Claim("b", "partly")]) == "1 holds in part, 1 open"
