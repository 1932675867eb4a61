"""What a paper claims and what became of it here, as a list in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fedctta.papers.tables import Claim

VERDICTS = {"yes": "holds", "no": "does not hold", "partly": "holds in part", "open": "open"}


def list_claims(claims: Sequence[Claim]) -> str:
    """Return one item per claim: the paper's words, whether they hold here, and why we think so."""
    return "\n".join(f"- *{claim.says}* **{VERDICTS[claim.holds].capitalize()}.**{_reasons(claim)}" for claim in claims)


def _reasons(claim: Claim) -> str:
    return "".join(f" {text}" for text in (claim.here, claim.why) if text)


def count_verdicts(claims: Sequence[Claim]) -> str:
    """Say in short how many claims hold.

    >>> count_verdicts([Claim("a", "yes"), Claim("b", "no"), Claim("c", "yes")])
    '2 hold, 1 does not hold'
    """
    many = {"yes": "hold", "no": "do not hold", "partly": "hold in part", "open": "open"}
    counts = {verdict: sum(claim.holds == verdict for claim in claims) for verdict in VERDICTS}
    told = [f"{n} {VERDICTS[verdict] if n == 1 else many[verdict]}" for verdict, n in counts.items() if n]
    return ", ".join(told) or "-"
