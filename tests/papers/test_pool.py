"""A pool finds its runs by their experiment, and packs them without losing or doubling any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedctta.errors import UserError
from fedctta.papers import pool
from fedctta.papers.campaign import plan_all, play_all
from fedctta.papers.pages import find_drawn
from fedctta.papers.pool import find_stand_ins, pack, read_pool, require_pool
from fedctta.results.packed import read_packed, write_packed
from fedctta.results.records import Record

POOL, FILE = Path("pool"), Path("docs") / "records.parquet"


@pytest.fixture
def played(presets):
    mine = plan_all().mine
    play_all(plan_all(), POOL, 1, Console(stderr=True))
    return mine


def test_runs_are_found_by_their_experiment_on_any_device(played):
    found = read_pool(POOL)
    assert set(found) == {run.anywhere.fingerprint for run in played}
    assert all(run.seconds > 0 and run.settings["dataset"] == "shapes-c" for run in found.values())


def test_packing_again_changes_nothing_and_another_pool_is_added(played):
    done = pack(POOL, FILE)
    assert done == (5, 5, 0, 0, 0)
    content = FILE.read_bytes()
    assert pack(POOL, FILE)[:3] == (5, 0, 0)
    assert FILE.read_bytes() == content
    play_all(plan_all(seeds=3), Path("other"), 1, Console(stderr=True))
    more = pack(Path("other"), FILE)
    assert (more.rows, more.added, more.replaced) == (9, 4, 5)  # the same five were made anew
    assert pack(POOL, FILE)[:3] == (9, 0, 0)  # and the earlier ones do not come back


def test_a_packed_pool_can_be_packed(played):
    pack(POOL, FILE)
    assert pack(FILE.parent, Path("more.parquet"))[:2] == (5, 5)
    assert read_packed(Path("more.parquet")).keys() == read_packed(FILE).keys()


def test_weights_are_kept_of_runs_that_figures_show(played):
    pack(POOL, FILE, find_drawn())
    shown = [key for key, run in read_packed(FILE).items() if run.weights is not None]
    assert len(shown) == 1  # FedAvg, seed 0


def test_files_that_do_not_say_what_they_are_of_are_counted(played):
    path = min((POOL / "runs").glob("*.safetensors"))
    record = Record.load(path)
    vars(record)["origin"].clear()
    record.save(path)
    assert pack(POOL, FILE) == (4, 4, 0, 1, 0)


DRAWN = "frost uses generated stand-in pictures"


def of_frost(run, note="as it is", made="2026-01-01"):
    """Return a digest as if the run had met frost."""
    parts = {**run.parts, "domain": {metric: {"frost": 50.0} for metric in run.parts["domain"]}}
    return replace(run, parts=parts, settings={**run.settings, "notes": [note]}, origin={**run.origin, "made": made})


def test_runs_that_saw_other_frost_than_the_rest_are_left_out(played):
    """They replace none, either: the later of two runs stays only if it saw the same images."""
    pack(POOL, FILE)
    (key, run), (other, another), *_ = read_packed(FILE).items()
    true = {key: of_frost(run)}
    later = {key: of_frost(run, DRAWN, "2026-01-02"), other: of_frost(another, DRAWN)}
    assert find_stand_ins(true, later) == {(key, "2026-01-02"), (other, "2026-01-01")}
    assert find_stand_ins(later) == find_stand_ins(true) == set()  # alike among themselves
    write_packed(FILE, true)
    write_packed(Path("other") / "records.parquet", later)
    assert pack(Path("other"), FILE) == (1, 0, 0, 0, 2)
    assert read_packed(FILE)[key].origin["made"] == "2026-01-01"


def test_a_true_run_takes_the_place_of_a_later_one_on_stand_ins(played, monkeypatch):
    pack(POOL, FILE)
    key, run = next(iter(read_packed(FILE).items()))
    digest = pool._digest
    monkeypatch.setattr(pool, "_digest", lambda *words: of_frost(digest(*words)))
    write_packed(FILE, {key: of_frost(run, DRAWN, "2999-01-01")})
    assert pack(POOL, FILE) == (5, 4, 1, 0, 1)
    assert read_packed(FILE)[key].origin["made"] == "2026-01-01"


def test_a_later_file_on_stand_ins_hides_none_on_the_true_pictures(played):
    path = min((POOL / "runs").glob("*.safetensors"))
    record = Record.load(path)
    record.settings["notes"] = [DRAWN]
    record.origin["made"] = "2999-01-01"
    record.save(path.with_stem("later"))
    assert read_pool(POOL)[record.origin["fingerprint"]].place == path


def test_a_folder_without_runs_is_no_pool(tmp_path):
    with pytest.raises(UserError, match="is no pool"):
        require_pool(tmp_path)


def test_a_file_is_no_pool(tmp_path):
    (tmp_path / "records.parquet").touch()
    with pytest.raises(UserError, match=f"is a file, and a pool is a folder: give --pool {tmp_path}, "):
        require_pool(tmp_path / "records.parquet")
    require_pool(tmp_path)
