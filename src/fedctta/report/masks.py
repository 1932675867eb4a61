"""Predictions as pictures: one image per domain, its true mask, and the mask each method predicted."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fedctta.data.mask_layouts import IGNORE
from fedctta.report.columns import Column
from fedctta.report.figures import STYLE, new_figure, save_png
from fedctta.report.text import number
from fedctta.results.metrics import mean_iou
from fedctta.results.records import Record

MOST_DOMAINS = 8
MOST_METHODS = 8
MOST_NAMES = 24  # of classes in the legend
_GROUND, _IGNORED = (0.80, 0.82, 0.84), (1.0, 1.0, 1.0)
_HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b6fd0", "#999933")


def paint(classes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return masks [..., H, W] in colours [..., H, W, 3]: class 0 grey, ignored pixels white.

    When the hues run out they come again, darker.
    """
    table = np.ones((256, 3))
    hues = np.array([mpl.colors.to_rgb(hue) for hue in _HUES])
    for k in range(1, IGNORE):
        table[k] = hues[(k - 1) % len(hues)] * 0.7 ** ((k - 1) // len(hues))
    table[0], table[IGNORE] = _GROUND, _IGNORED
    painted: NDArray[np.float64] = table[classes]
    return painted


def image_iou(truth: NDArray[np.uint8], predicted: NDArray[np.uint8]) -> float:
    """Return the mean intersection over union of one image: of the classes in it, ignored pixels aside."""
    here = truth != IGNORE
    true, guess = truth[here], predicted[here]
    seen, right, told = (np.bincount(part, minlength=IGNORE) for part in (true, true[true == guess], guess))
    return mean_iou(seen, right, told)


def shown_runs(column: Column) -> dict[str, Record]:
    """Return the first seed of every method, of those that were shown the same images as the first."""
    runs = {label: found[0] for label, found in column.methods.items() if found[0].dense}
    if not runs:
        return {}
    first = next(iter(runs.values())).pictures[..., :4]
    same = {label: run for label, run in runs.items() if np.array_equal(run.pictures[..., :4], first)}
    return dict(list(same.items())[:MOST_METHODS])


def masks_figure(column: Column) -> Figure | None:
    """Draw domains down; image, truth and every method's prediction across. None where nothing was dense."""
    runs = shown_runs(column)
    if not runs:
        return None
    first = next(iter(runs.values()))
    met = [k for k in range(len(first.domains)) if (first.domain == k).any()][:MOST_DOMAINS]
    ratio = first.pictures.shape[1] / first.pictures.shape[2]
    with mpl.rc_context(STYLE):
        figure = new_figure(0.6 + 1.35 * (2 + len(runs)), 1.1 + (1.35 * ratio + 0.22) * len(met))
        axes = figure.subplots(len(met), 2 + len(runs), squeeze=False)
        for line, k in zip(axes, met, strict=True):
            image, truth = first.pictures[k, ..., :3], first.pictures[k, ..., 3]
            pictures = [image, paint(truth), *(paint(run.pictures[k, ..., 4]) for run in runs.values())]
            for ax, picture in zip(line, pictures, strict=True):
                ax.imshow(picture, interpolation="nearest")
                ax.set_xticks([])
                ax.set_yticks([])
                ax.spines[:].set_visible(False)
            line[0].set_ylabel(first.domains[k].replace("_", " "))
            for ax, run in zip(line[2:], runs.values(), strict=True):
                ax.set_xlabel(f"mIoU {number(100 * image_iou(truth, run.pictures[k, ..., 4]))}", size=8)
        for ax, title in zip(axes[0], ["image", "truth", *runs], strict=True):
            ax.set_title(title, weight="normal", size=9, loc="center")
        figure.suptitle(f"Predicted masks, {column.name}", x=0.01, ha="left", weight="bold", size=10)
        _legend(figure, first.settings)
    return figure


def _legend(figure: Figure, settings: Mapping[str, object]) -> None:
    names = settings.get("classes")
    if isinstance(names, Sequence) and names:
        shown = [str(name) for name in names][:MOST_NAMES]
        colours = paint(np.arange(len(shown), dtype=np.uint8))
        marks = [Patch(facecolor=colour, label=name) for colour, name in zip(colours, shown, strict=True)]
        across = max(1, int(figure.get_figwidth() / (0.55 + 0.08 * max(map(len, shown)))))
        figure.legend(handles=marks, loc="outside lower left", ncols=across, frameon=False, handlelength=1.0)


def masks_section(columns: Sequence[Column]) -> str:
    """Return the page's section with a picture of every column that has one, written into it; "" without any."""
    figures = {column.name: figure for column in columns if (figure := masks_figure(column)) is not None}
    if not figures:
        return ""
    parts = []
    for name, figure in figures.items():
        file = io.BytesIO()
        save_png(figure, file)
        data, words = base64.b64encode(file.getvalue()).decode("ascii"), f"Masks, {name}"
        parts.append(f'<p><img alt="{escape(words)}" class="masks" src="data:image/png;base64,{data}"></p>')
    note = (
        "The first image of each domain's last batch, for the first client there; first seed. White counts nowhere."
        " Below a mask stands the mIoU of this one image; the run's is in the table below."
    )
    return (
        '<section aria-labelledby="h-masks"><h2 id="h-masks">Predicted masks</h2>'
        f'{"".join(parts)}<p class="note">{note}</p></section>'
    )
