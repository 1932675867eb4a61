from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedctta.data.mask_layouts import IGNORE
from fedctta.report.columns import arrange
from fedctta.report.masks import MOST_DOMAINS, image_iou, masks_figure, masks_section, paint, shown_runs
from fedctta.report.table import results_table
from fedctta.results.records import Record

Fake = Callable[..., Record]


def dense(fake: Fake, seed: int = 0, **settings: object) -> Record:
    run = fake(classes=["ground", "thing"], **settings)
    pictures = np.random.default_rng(seed).integers(0, 2, (len(run.domains), 6, 8, 5), np.uint8)
    return replace(run, pictures=pictures)


def test_classes_have_colours_of_their_own_and_ignored_pixels_none() -> None:
    painted = paint(np.arange(256, dtype=np.uint8))
    assert len(np.unique(painted[:9].round(6), axis=0)) == 9
    assert painted[IGNORE].tolist() == [1, 1, 1]
    assert not (painted[1:24] == 1).all(1).any()


def test_the_figure_has_image_truth_and_every_method(fake: Fake) -> None:
    runs = [dense(fake, aggregator=name) for name in ("local", "fedavg", "fedctta")]
    figure = masks_figure(arrange(runs)[0])
    assert isinstance(figure, Figure)
    met = min(MOST_DOMAINS, len(runs[0].accuracy_by_domain))
    assert len(figure.axes) == met * 5
    titles = [ax.get_title() for ax in figure.axes[:5]]
    assert figure.get_suptitle() == "Predicted masks, niid"
    assert titles == ["image", "truth", "Local", "FedAvg", "FedCTTA"]
    first = runs[2].pictures[0]
    assert figure.axes[4].get_xlabel() == f"mIoU {100 * image_iou(first[..., 3], first[..., 4]):.2f}"
    assert figure.axes[1].get_xlabel() == ""


def test_the_overlap_of_one_image() -> None:
    truth = np.array([[0, 0, 0, 1], [1, 1, IGNORE, IGNORE]], np.uint8)
    guess = np.array([[0, 0, 1, 1], [1, 2, 0, 1]], np.uint8)
    assert image_iou(truth, guess) == pytest.approx((2 / 3 + 2 / 4) / 2)  # class 2 is not in the image


def test_methods_shown_other_images_are_left_out(fake: Fake) -> None:
    runs = [dense(fake, aggregator="local"), dense(fake, seed=1, aggregator="fedavg")]
    assert list(shown_runs(arrange(runs)[0])) == ["Local"]


def test_plain_runs_have_neither_section_nor_columns(fake: Fake) -> None:
    columns = arrange([fake()])
    assert masks_section(columns) == ""
    table = results_table([fake()])
    assert "mIoU" not in table.markdown()
    assert "miou" not in table.csv()


def test_the_section_is_a_picture_within_the_page_and_the_table_shows_overlap(fake: Fake) -> None:
    runs = [dense(fake, stream='"><script>')]
    section = masks_section(arrange(runs))
    assert 'src="data:image/png;base64,' in section
    assert "<script>" not in section
    table = results_table(runs)
    assert "mIoU" in table.markdown()
    assert "miou" in table.csv().splitlines()[0]
