from __future__ import annotations

import pytest

from fedctta.data.progress import bar, say


def test_say_is_silent_on_request(capsys: pytest.CaptureFixture[str]):
    say("[one] line")
    say("not this", False)
    assert capsys.readouterr() == ("", "[one] line\n")


def test_a_bar_is_shown_on_request_only(capsys: pytest.CaptureFixture[str]):
    for progress in (None, False):
        with bar("quiet", 2, progress) as advance:
            advance(2)
    assert capsys.readouterr().err == ""
    with bar("loud", 2, True) as advance:
        advance(2)
    assert "loud" in capsys.readouterr().err
