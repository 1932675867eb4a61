"""A folder takes the runs it is for, and no others unasked."""

from __future__ import annotations

import json

import pytest

from fedctta.errors import UserError
from fedctta.runs.output_folder import claim_folder as claiming
from fedctta.runs.output_folder import find_free_folder, read_names
from fedctta.runs.settings import single


def claim_folder(folder, experiments, resume):
    """Claim a folder, with nothing going wrong."""
    with claiming(folder, experiments, resume):
        pass


ONE, TWO, THREE = (single({"dataset": "shapes-c", "seed": seed}) for seed in (0, 1, 2))


def test_a_new_folder_is_taken_and_names_its_runs(tmp_path):
    claim_folder(tmp_path / "a", [ONE, TWO], resume=False)
    assert read_names(tmp_path / "a") == {
        ONE.fingerprint: "shapes-c niid bn+fedctta seed 0",
        TWO.fingerprint: "shapes-c niid bn+fedctta seed 1",
    }


def test_the_same_runs_may_be_played_again(tmp_path):
    claim_folder(tmp_path, [ONE, TWO], resume=False)
    first = read_names(tmp_path)
    (tmp_path / "experiments.json").write_text(json.dumps(dict.fromkeys(first, "an older name")))
    claim_folder(tmp_path, [TWO, ONE], resume=False)
    assert read_names(tmp_path) == first
    assert len(first) == 2


@pytest.mark.parametrize("others", [[THREE], [ONE], [ONE, TWO, THREE]])
def test_other_runs_do_not_replace_a_report(others, tmp_path):
    claim_folder(tmp_path, [ONE, TWO], resume=False)
    with pytest.raises(UserError, match=r"holds other runs \(.* and 1 more\), whose report would be replaced"):
        claim_folder(tmp_path, others, resume=False)
    assert len(read_names(tmp_path)) == 2


def test_resuming_adds_runs_and_refuses_what_was_never_begun(tmp_path):
    claim_folder(tmp_path, [ONE], resume=True)
    claim_folder(tmp_path, [ONE, TWO], resume=True)
    assert read_names(tmp_path).keys() == {ONE.fingerprint, TWO.fingerprint}
    claim_folder(tmp_path, [TWO, THREE], resume=True)
    assert read_names(tmp_path).keys() == {ONE.fingerprint, TWO.fingerprint, THREE.fingerprint}
    claim_folder(tmp_path, [ONE], resume=True)
    assert len(read_names(tmp_path)) == 3
    with pytest.raises(UserError, match="none of these, so there is nothing to resume"):
        claim_folder(tmp_path, [single({"dataset": "shapes-c", "seed": 3})], resume=True)
    assert len(read_names(tmp_path)) == 3


def test_a_folder_without_the_file_is_free_and_a_damaged_one_too(tmp_path):
    (tmp_path / "experiments.json").write_text("[1")
    claim_folder(tmp_path, [ONE], resume=False)
    assert len(read_names(tmp_path)) == 1


def test_a_free_folder_is_found(tmp_path):
    wished = tmp_path / "shapes-c"
    assert find_free_folder(wished, [ONE]) == wished
    claim_folder(wished, [ONE], resume=False)
    assert find_free_folder(wished, [ONE]) == wished
    second = find_free_folder(wished, [TWO])
    assert find_free_folder(wished, [ONE, TWO]) == second
    assert second == tmp_path / "shapes-c-2"
    claim_folder(second, [TWO], resume=False)
    assert find_free_folder(wished, [THREE]) == tmp_path / "shapes-c-3"


def test_a_refusal_leaves_nothing_and_keeps_what_was_there(tmp_path):
    def refuse(folder):
        with claiming(folder, [ONE], resume=False):
            (folder / "runs").mkdir(exist_ok=True)
            raise UserError("no")

    with pytest.raises(UserError, match="no"):
        refuse(tmp_path / "above" / "new")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old" / "runs").mkdir(parents=True)
    (tmp_path / "old" / "runs" / "a.record").touch()
    with pytest.raises(UserError, match="no"):
        refuse(tmp_path / "old")
    assert len(read_names(tmp_path / "old")) == 1
