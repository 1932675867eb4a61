"""A schedule from the user's own TOML file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedctta.errors import UserError
from fedctta.streams import ABSENT, build
from fedctta.streams.custom import Custom, walk

NAMES = ("fog", "snow", "frost")


@pytest.fixture
def schedule(tmp_path):
    """Give the maker of schedules from TOML text."""

    def make(text: str) -> Custom:
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        return Custom(str(tmp_path / "mine.toml"))

    return make


def test_groups_stand_side_by_side_and_shorter_ones_end_absent(schedule):
    custom = schedule(
        """
        [[group]]
        clients = 2    # zwei Geräte
        visits = ["fog", ["snow", 3], "absent", "fog"]
        [[group]]
        clients = 1
        visits = [["frost", 1]]
        """
    )
    assert custom.default_clients() == 3
    plan = custom.plan(3, NAMES, slots=2)
    first = [0, 0, 1, 1, 1, ABSENT, ABSENT, 0, 0]
    assert plan.T.tolist() == [first, first, [2] + [ABSENT] * 8]
    assert plan.dtype == np.int32


def test_the_example_of_the_module_is_a_schedule(schedule):
    from fedctta.streams import custom

    lines = (custom.__doc__ or "").splitlines()
    plan = schedule("\n".join(line for line in lines if line.startswith("    "))).plan(3, NAMES, slots=2)
    assert plan.T.tolist() == [[0, 0, 1, 1, 1, 1, 1, ABSENT, ABSENT]] * 3


def test_a_schedule_becomes_a_stream(schedule, make_domains):
    custom = schedule('group = [{clients = 2, visits = ["d0", "d1"]}, {clients = 1, visits = ["absent", "d0", "d0"]}]')
    stream = build(custom, make_domains(2, images=24, side=1), clients=3, slots=2, batch=2, seed=0)
    assert stream.samples.shape == (3, 4, 2), "twice in the same domain needs twice the images"
    assert [len(stream.slot(t).images) for t in range(len(stream))] == [2, 2, 3, 3, 1, 1]


@given(st.lists(st.tuples(st.sampled_from([*NAMES, "absent"]), st.integers(1, 5) | st.none())), st.integers(1, 4))
def test_a_visit_lasts_its_own_slots_or_the_common_number(visits, slots):
    row = walk([name if own is None else [name, own] for name, own in visits], NAMES, slots, "file")
    expected = [(name, slots if own is None else own) for name, own in visits]
    assert len(row) == sum(length for _, length in expected)
    for name, length in expected:
        assert row[:length] == [ABSENT if name == "absent" else NAMES.index(name)] * length
        row = row[length:]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[group", "cannot read the schedule .*mine.toml: "),
        ("", r"mine.toml must consist of \[\[group\]\] tables"),
        ("group = []", "mine.toml must consist of"),
        ("group = 3", "mine.toml must consist of"),
        ('[group]\nclients = 1\nvisits = ["fog"]', "mine.toml must consist of"),
        ('seed = 1\n[[group]]\nclients = 1\nvisits = ["fog"]', "mine.toml must consist of"),
        ("group = [1, 2]", r"mine.toml: every \[\[group\]\] has exactly two keys"),
        ("[[group]]\nclients = 1", "exactly two keys"),
        ('[[group]]\nclients = 1\nvisits = ["fog"]\nslots = 2', "exactly two keys"),
        ('[[group]]\nclients = 0\nvisits = ["fog"]', r"clients \(1 or more\)"),
        ('[[group]]\nclients = "2"\nvisits = ["fog"]', r"clients \(1 or more\)"),
        ('[[group]]\nclients = true\nvisits = ["fog"]', r"clients \(1 or more\)"),
        ('[[group]]\nclients = 1\nvisits = "fog"', r"visits \(a list\)"),
        ("[[group]]\nclients = 1\nvisits = 5", r"visits \(a list\)"),
        ('[[group]]\nclients = 1\nvisits = ["fogg"]', "unknown domain in .*mine.toml 'fogg': did you mean fog"),
        ("[[group]]\nclients = 1\nvisits = [[3, 1]]", "unknown domain in .*mine.toml '3'"),
        ("[[group]]\nclients = 1\nvisits = [3]", r"mine.toml: a visit is a name or \[name, slots\], not 3"),
        ('[[group]]\nclients = 1\nvisits = [["fog"]]', "a visit is a name or"),
        ('[[group]]\nclients = 1\nvisits = [["fog", 0]]', r"\['fog', 0\] must last a whole number of slots"),
        ('[[group]]\nclients = 1\nvisits = [["fog", 1.5]]', "must last a whole number of slots"),
        ('[[group]]\nclients = 1\nvisits = [["fog", true]]', "must last a whole number of slots"),
        ('[[group]]\nclients = 2\nvisits = ["fog"]', "describes 2 clients, not 1: use clients=2"),
    ],
)
def test_a_schedule_that_cannot_be_is_told(schedule, text, message):
    with pytest.raises(UserError, match=message):
        schedule(text).plan(1, NAMES, slots=2)


@pytest.mark.parametrize("visits", ["[]", '["absent"]'])
def test_a_schedule_without_a_visit_is_told(schedule, domains, visits):
    custom = schedule(f"[[group]]\nclients = 1\nvisits = {visits}")
    with pytest.raises(UserError, match="stream custom shows no client any domain: give at least one client one visit"):
        build(custom, domains, clients=1, slots=1, batch=1, seed=0)


def test_a_file_that_is_not_given_not_there_or_not_text_is_told(tmp_path):
    with pytest.raises(UserError, match=r"stream=custom needs a schedule: add custom.file=PATH"):
        Custom().default_clients()
    with pytest.raises(UserError, match=r"there is no schedule file .*mine.toml: check the path"):
        Custom(str(tmp_path / "mine.toml")).default_clients()
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"cannot read the schedule .*mine.toml"):
        Custom(str(tmp_path / "mine.toml")).default_clients()
