"""What the package offers draws only when it is asked to."""

from __future__ import annotations

from matplotlib.figure import Figure

from fedctta import report
from fedctta.report import figures
from fedctta.report import folder as report_folder


def test_the_overview_and_the_report_are_those_of_their_modules(fake, tmp_path, monkeypatch):
    records, asked = [fake()], []
    assert isinstance(report.plot(records), Figure)
    monkeypatch.setattr(report_folder, "write_report", lambda *given: asked.append(given) or tmp_path / "report.html")
    assert report.write_report(records, tmp_path, title="Ours") == tmp_path / "report.html"
    assert asked == [(records, tmp_path, None, "Ours")]


def test_a_figure_is_drawn_once(fake, tmp_path, monkeypatch):
    figure, draws = report.plot([fake()]), []
    draw = Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: draws.append(1) or draw(self, renderer))
    figures.save_png(figure, tmp_path / "overview.png")
    assert draws == [1]
    assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")
