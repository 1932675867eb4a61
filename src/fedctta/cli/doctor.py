"""`fedctta doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedctta.cli.console import out, print_list
from fedctta.errors import UserError

STYLES = {"fine": "green", "note": "yellow", "wrong": "red"}
IMAGES = 64
TRIED = 16  # images per batch when adapters are tried


def doctor(
    words: Annotated[list[str], typer.Argument(metavar="KEY=VALUE ...", show_default=False)],
    adapters: Annotated[bool, typer.Option(help="Try every adapter and measure what it costs.")] = True,
) -> None:
    """Say whether a model and images fit each other, and which adapters work on them.

    The keys are those of a run that choose model, data and device; data=X stands for dataset=X, or, if X is a path, for
    dataset=folders folder=X, or dataset=arrays if there are .npy or .npz files.

    Example: fedctta doctor model=my_models:make weights=my.pt data=my_images size=64
    """
    from fedctta.runs.doctor import examine, try_adapters
    from fedctta.runs.samples import load_sample

    network, x, labels, classes = load_sample(words, IMAGES)
    findings = examine(network, x, labels, classes)
    for finding in findings:
        out.print(f"{finding.about:>14}  ", end="")
        out.print(f"{finding.text}", style=STYLES[finding.level], highlight=False, soft_wrap=True)
    for finding in findings:
        if finding.level == "wrong" and finding.about in ("images", "model", "output"):
            raise UserError(f"the model does not fit: {finding.text}" if finding.about != "images" else finding.text)
    if adapters:
        out.print()
        fits = try_adapters(network, x[:TRIED], x)
        costs = ["no" if fit.refusal else f"{fit.cost:.1f} x plain inference" for fit in fits]
        rows = [(fit.name, cost, fit.refusal) for fit, cost in zip(fits, costs, strict=True)]
        print_list(f"adapters (batch {min(TRIED, len(x))})", rows)
