"""What `recall` was asked to reach, measured on seeds that it was not tuned on.

    python benchmarks/recall_results.py [--sections roam familiar ...] [--seeds 27 28 29] [--jobs 15] [--device cuda]

Finished runs are kept in --out (results.json), so that sections can be run one after another, and a call with
`--sections` alone writes the page (--page, docs/results/recall.md) and the picture (--picture) from what is there.
`recall` has one setting for all rows, its default, which was tuned on seeds 0 and 1. The section `pacs` needs images
(`fedctta data fetch pacs`) and the models that `fedctta reproduce natural-pacs` trains.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import fedctta
from fedctta.files import whole
from fedctta.results.records import Record
from fedctta.runs.settings import parse_single
from fedctta.uploads.attacks import choose_liars

ROAM = "stream=roam"
SHARED = "adapter=recall aggregator=recall"
MIXED = f"{ROAM} roam.clean=true"
PACS = "dataset=pacs model=efficientnet-lite0 size=128 stream=roam clients=8 precision=tf32 batch=10 slots=75"
TRAINED = {
    **{"photos": "photo", "art": "art_painting", "cartoons": "cartoon", "sketches": "sketch"},
    "all but sketches": "photo+art_painting+cartoon",
    "all but cartoons": "photo+art_painting+sketch",
    "all but photos": "art_painting+cartoon+sketch",
}
LIES = ("sign", "scale", "random", "statistics")
QUIET, LIE_UNTIL, AFTER = f"{SHARED} {ROAM} interval=10", 300, 500  # twenty exchanges from the last lie on
BINS = tuple(range(0, 200, 10))  # of images since the shift


@dataclass(frozen=True)
class Section:
    """Rows to run, by name, and what is asked of them."""

    title: str
    asked: str
    rows: Mapping[str, str]
    against: Mapping[str, str] = field(default_factory=dict)  # a row, and that from which its gain is counted
    honest: bool = False  # count the honest alone, during the lies and after
    cells: bool = False  # sum up gains over all rows, domains and seeds


def sections() -> dict[str, Section]:
    """Return what there is to run."""
    few = {n: f"{MIXED} samples=few few.classes={n}" for n in (3, 1)}
    skew = "stream=niid samples=dirichlet dirichlet.delta=0.1"
    return {
        "roam": Section(
            "Devices that roam, CIFAR-10-C, 20 devices, batches of 10",
            "an exchange every 50 batches: all at least 76.5, first ten at least 75.5; own book at least 75.5",
            {
                "source": f"adapter=none {ROAM}",
                "bn alone": f"adapter=bn aggregator=local {ROAM}",
                "bn alone, running statistics": f"adapter=bn aggregator=local bn.momentum=0.1 {ROAM}",
                "bn, lock-step oracle": f"adapter=bn aggregator=oracle {ROAM}",
                "bn, kin in lock-step": f"adapter=bn aggregator=kin {ROAM}",
                "recall, own book, no server": f"adapter=recall aggregator=local {ROAM}",
                "recall, an exchange every 50 batches": f"{SHARED} {ROAM} interval=50",
                "recall with Tent inside": f"{SHARED} {ROAM} interval=50 recall.inner=tent",
            },
        ),
        "cola": Section(
            "CoLA on the same stream, an exchange every 50 batches",
            "recall above it on all images and after a shift",
            {
                "CoLA, principals": f"adapter=cola aggregator=cola {ROAM} interval=50",
                "CoLA, principals, running statistics":
                    f"adapter=cola aggregator=cola {ROAM} interval=50 cola.statistics=moving",
                "CoLA, half of them followers": f"adapter=cola aggregator=cola {ROAM} interval=50 cola.role=mixed",
            },
        ),
        "single": Section(
            "The same, batches of one image, an exchange every 500",
            "all at least 75.3, first ten at least 73.5",
            {
                "recall": f"{SHARED} {ROAM} batch=1 slots=500 interval=500",
            },
        ),
        "familiar": Section(
            "Familiar images and few classes",
            "clean no more than 0.3 below the source; 30 % clean at least 10.5 above; 3 classes at least 4 above; one"
            " class not below, and no domain more than 2 below",
            {
                "clean, source": "adapter=none domains=clean stream=iid",
                "clean, recall": f"{SHARED} domains=clean stream=iid interval=50",
                "30 % clean stays, source": f"adapter=none {MIXED}",
                "30 % clean stays, recall": f"{SHARED} {MIXED} interval=50",
                **{f"and {n} of 10 classes per device, source": f"adapter=none {words}" for n, words in few.items()},
                **{f"and {n} of 10 classes per device, recall": f"{SHARED} {words} interval=50"
                   for n, words in few.items()},
            },
            {f"{what}, recall": f"{what}, source" for what in (
                "clean", "30 % clean stays", "and 3 of 10 classes per device", "and 1 of 10 classes per device")},
        ),
        "lockstep": Section(
            "Lock-step, an exchange with every batch",
            "NIID and IID no more than 0.2 below kin; Dirichlet 0.1 no more than 1 below the best of Local and kin",
            {
                f"{name}, {row}": f"{words} {method} interval=1"
                for name, words in (("NIID", "stream=niid"), ("IID", "stream=iid"), ("Dirichlet 0.1", skew))
                for row, method in (("Local", "adapter=bn aggregator=local"), ("kin", "adapter=bn aggregator=kin"),
                                    ("recall", SHARED))
            },
            {f"{name}, recall": f"{name}, kin" for name in ("NIID", "IID", "Dirichlet 0.1")},
        ),
        "pacs": Section(
            "PACS, EfficientNet-Lite0 tuned on some of four domains, 8 devices, an exchange every 10 batches of 10",
            "over seven source models and four domains a mean gain of at least 2.5, no cell worse than -1",
            {
                f"trained on {name}, {row}": f"{method} {PACS} weights={weights}"
                for name, weights in TRAINED.items()
                for row, method in (("source", "adapter=none"), ("recall", f"{SHARED} interval=10"))
            },
            {f"trained on {name}, recall": f"trained on {name}, source" for name in TRAINED},
            cells=True,
        ),
        "lies": Section(
            f"Two liars of 20 with honest looks, an exchange every 10 batches, lies until batch {LIE_UNTIL}",
            "less than 1 point lost during the lies, and less than 0.3 from twenty exchanges after them on",
            {"nobody lies": QUIET}
            | {lie: f"{QUIET} liars=2 lie={lie} lie_until={LIE_UNTIL}" for lie in LIES},
            dict.fromkeys(LIES, "nobody lies"),
            honest=True,
        ),
        "noise": Section(
            "Noise with a budget, an exchange every 50 batches, delta 1e-5",
            "epsilon 4 loses no more than 2 points",
            {"no noise": f"{SHARED} {ROAM} interval=50"}
            | {f"epsilon {e}": f"{SHARED} {ROAM} interval=50 epsilon={e} delta=1e-5" for e in (16, 4, 1)}
            | {"own book, no server": f"adapter=recall aggregator=local {ROAM}"},
            {f"epsilon {e}": "no noise" for e in (16, 4, 1)},
        ),
    }  # fmt: skip


def summarise(record: Record, seed: int) -> dict[str, Any]:
    """Return what the page shows of a run: percent, and counts of right predictions by images since the shift."""
    clients = record.seen.shape[1]
    honest = np.delete(np.arange(clients), list(choose_liars(clients, 2, seed)))

    def count(rounds: slice) -> float:
        return 100 * float(record.correct[rounds, honest].sum() / record.seen[rounds, honest].sum())

    return {
        "all": 100 * record.accuracy,
        "first": 100 * record.accuracy_after_shift,
        "domains": {name: 100 * share for name, share in record.accuracy_by_domain.items()},
        "during": count(slice(0, LIE_UNTIL)),
        "after": count(slice(AFTER, None)) if len(record.seen) > AFTER else None,
        "since": [100 * record.accuracy_since_shift(first, first + 10) for first in BINS],
        "machine": f"{record.settings['hardware']}, torch {record.settings['torch']}",
    }


def play(job: tuple[str, int]) -> tuple[str, dict[str, Any]]:
    """Play one run; a method that cannot be run says why."""
    words, seed = job
    values = parse_single(words.split(), "benchmarks/recall_results.py")
    try:
        (record,) = fedctta.run(**values, seed=seed, **({} if values["adapter"] == "none" else {"baseline": False}))
    except fedctta.UserError as error:
        return key(words, seed), {"refused": str(error)}
    return key(words, seed), summarise(record, seed)


def key(words: str, seed: int) -> str:
    """Return the name of a run in the results."""
    return f"{words} seed={seed}"


def play_all(jobs: Sequence[tuple[str, int]], workers: int, out: Path) -> dict[str, dict[str, Any]]:
    """Play what is missing, some at once, and keep every result as soon as it is there."""
    file = out / "results.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    missing = [job for job in dict.fromkeys(jobs) if key(*job) not in found]
    if not missing:
        return found
    out.mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
        for name, result in pool.imap_unordered(play, missing, 1):
            found[name] = result
            with whole(file) as part:
                part.write_text(json.dumps(found))
            print(f"{name}: {result.get('refused') or format(result['all'], '.2f')}", flush=True)
    return found


def table(section: Section, found: Mapping[str, dict[str, Any]], seeds: Sequence[int]) -> str:
    """Write a section: what was asked, and what was found."""
    rows = {
        name: [found[key(words, s)] for s in seeds if "all" in found.get(key(words, s), {})]
        for name, words in section.rows.items()
    }
    columns = {"all": "all", "first ten": "first"}
    if section.honest:
        columns = {"the honest during the lies": "during", "after": "after"}
    lines = [f"## {section.title}", "", f"Asked: {section.asked}.", ""]
    gains = ["gain", "worst domain"] if section.against and not section.honest else []
    gains = [f"lost {name}" for name in columns] if section.honest else gains
    lines += ["| | " + " | ".join([*columns, *gains]) + " |", "| :-- |" + " --: |" * (len(columns) + len(gains))]
    for name, runs in rows.items():
        if not runs:
            continue
        cells = [_cell([run[column] for run in runs]) for column in columns.values()]
        base = rows.get(section.against.get(name, ""), [])
        if gains:
            cells += _compare(section, columns, runs, base) if len(base) == len(runs) else [""] * len(gains)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if section.cells:
        lines += ["", _sum_up(section, rows)]
    short = sorted({name for name, runs in rows.items() if len(runs) < len(seeds)})
    machines = sorted({run["machine"] for runs in rows.values() for run in runs})
    tail = f"Seeds {', '.join(map(str, seeds))}; {'; '.join(machines)}."
    return "\n".join(lines) + f"\n\n{tail}" + (f" Incomplete: {', '.join(short)}." if short else "") + "\n"


def _compare(section: Section, columns: Mapping[str, str], runs: Sequence[Any], base: Sequence[Any]) -> list[str]:
    pairs = list(zip(runs, base, strict=True))
    if section.honest:
        return [", ".join(f"{b[c] - r[c]:.2f}" for r, b in pairs) for c in columns.values()]
    gains = ", ".join(f"{r['all'] - b['all']:+.2f}" for r, b in pairs)
    worst = min((r["domains"][k] - b["domains"][k], k) for r, b in pairs for k in r["domains"])
    return [gains, f"{worst[0]:+.1f} ({worst[1]})"]


def _sum_up(section: Section, rows: Mapping[str, Sequence[Any]]) -> str:
    """Say the mean gain over all rows, domains and seeds, and the three worst."""
    gains = sorted(
        (run["domains"][domain] - base["domains"][domain], domain, name.removesuffix(", recall"))
        for name, other in section.against.items()
        for run, base in zip(rows[name], rows[other], strict=True)
        for domain in run["domains"]
    )
    if not gains:
        return ""
    worst = "; ".join(f"{gain:+.1f} ({domain}, {name})" for gain, domain, name in gains[:3])
    below = sum(gain < -1 for gain, *_ in gains)
    mean = statistics.mean(gain for gain, *_ in gains)
    return f"{len(gains)} cells: mean gain {mean:+.2f}, {below} below -1; the worst: {worst}."


def _cell(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def draw(found: Mapping[str, dict[str, Any]], seeds: Sequence[int], file: Path) -> None:
    """Draw accuracy by images since the shift."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = sections()["roam"].rows
    shown: dict[str, dict[str, Any]] = {
        "recall, an exchange every 50 batches": {"color": "#0b6e4f", "linewidth": 2.4},
        "recall, own book, no server": {"color": "#6fb98f", "linewidth": 1.8},
        "bn, lock-step oracle": {"color": "#c1666b", "linewidth": 1.8},
        "bn alone, running statistics": {"color": "#4a6fa5", "linewidth": 1.8},
        "source": {"color": "#888888", "linewidth": 1.2, "linestyle": "--"},
    }
    figure, axes = plt.subplots(figsize=(7.2, 3.6), dpi=150)
    for name, style in shown.items():
        curves = [found[key(rows[name], s)]["since"] for s in seeds if "since" in found.get(key(rows[name], s), {})]
        if curves:
            axes.plot([b + 10 for b in BINS], np.mean(curves, 0), label=name, **style)
    axes.set(xlabel="images since the shift", ylabel="accuracy (%)", xlim=(10, 200))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.14))
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/recall"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/recall.md"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/recall.png"))
    parser.add_argument("--sections", nargs="*", default=list(sections()), help="what to run; none: write the page")
    parser.add_argument("--seeds", nargs="*", type=int, default=[27, 28, 29])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--slots", type=int, help="fewer slots a domain, to try it out")
    options = parser.parse_args()
    common = f" device={options.device}" * (options.device != "auto")
    jobs = [
        (words + common + (f" slots={options.slots}" if options.slots and "slots=" not in words else ""), seed)
        for name in options.sections
        for words in sections()[name].rows.values()
        for seed in options.seeds
    ]
    found = play_all(jobs, options.jobs, options.out)
    if common or options.slots:
        return
    pages = [table(section, found, options.seeds) for section in sections().values()]
    head = (
        "# recall\n\nMade by `python benchmarks/recall_results.py`. Accuracy in percent, mean and spread over seeds;"
        " gains seed by seed. *First ten*: the first ten images of a stay. One setting for all, tuned on seeds 0 and 1."
        " How it works and how it came about: [research](../research/recall.md).\n\n"
    )
    for file in (options.page, options.picture):
        file.parent.mkdir(parents=True, exist_ok=True)
    with whole(options.page) as part:
        part.write_text(head + "\n".join(pages))
    draw(found, options.seeds, options.picture)


if __name__ == "__main__":
    main()
