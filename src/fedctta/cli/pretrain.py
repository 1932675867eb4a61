"""`fedctta pretrain`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedctta.cli.console import err, out


def pretrain(
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE ...", show_default=False)] = None,
) -> None:
    """Train a source model, or what a method learns at the source (method=atp, method=fedthe).

    Example: fedctta pretrain model=resnet8 dataset=cifar10 epochs=60 seed=0

    Example: fedctta pretrain model=efficientnet-lite0 dataset=pacs size=128 train=photo
    """
    from fedctta.adapters import adapters
    from fedctta.runs.settings import parse_single
    from fedctta.training.method_training import learn
    from fedctta.training.plan import name_weights
    from fedctta.training.pretraining import pretrain as pretrain_model

    values = parse_single(words or [], "a training")
    unit = "epoch" if "method" not in values and values.get("federation", "none") == "none" else "round"
    columns = (TextColumn(unit), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=None, loss="")

        def show(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, loss=f"loss {loss:.4f}")

        def tell(done: int, accuracy: float) -> None:
            err.print(f"epoch {done}: accuracy {100 * accuracy:.2f} %")

        path, card = learn(values, show) if "method" in values else pretrain_model(values, show, tell)
    if "method" in values:
        name, losses = card["method"], card["losses"]
        learnt = adapters.classes()[name].learns
        place = f"{name}.{learnt}={path if 'out' in values else 'auto'}"
        out.print(f"{name} for {card['model']}: loss {losses[0]:.4f} in the first round, {losses[-1]:.4f} in the last")
        out.print(f"{learnt}: {path} (use them with adapter={name} {place})", soft_wrap=True)
        return
    corrupted = card["accuracy_corrupted"]
    if "miou" in card:
        by_domain = ", ".join(f"{name} {100 * value:.2f}" for name, value in card["miou_by_corruption"].items())
        out.print(f"mIoU at the source {100 * card['miou']:.2f} %; by domain {by_domain}", soft_wrap=True)
    elif "accuracy_by_domain" in card:
        by_domain = ", ".join(f"{name} {100 * value:.2f}" for name, value in card["accuracy_by_domain"].items())
        out.print(f"accuracy on held-out images of {' and '.join(card['train'])} {100 * card['accuracy']:.2f} %")
        out.print(f"by domain: {by_domain}", soft_wrap=True)
    else:
        out.print(f"clean accuracy {100 * card['accuracy']:.2f} %, corrupted (severity 5) {100 * corrupted:.2f} %")
    how = values.get("recipe", "standard"), values.get("federation", "none")
    name = name_weights(card.get("train", ()), *how) or "auto"
    out.print(f"weights: {path} (use them with weights={path if 'out' in values else name})", soft_wrap=True)
