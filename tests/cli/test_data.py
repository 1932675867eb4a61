"""`fedctta data`."""

from __future__ import annotations

from typer.testing import CliRunner

from fedctta.cli import app


def test_data_lists_and_checks(home):
    told = CliRunner().invoke(app, ["data"], catch_exceptions=False).output
    assert "embedded" in told
    assert "missing" in told
    assert "nothing is cached" in CliRunner().invoke(app, ["data", "check"], catch_exceptions=False).output
    CliRunner().invoke(app, ["data", "fetch", "shapes-c"], catch_exceptions=False)
    assert "ok" in CliRunner().invoke(app, ["data", "check"], catch_exceptions=False).output


def test_damage_is_found_told_and_repaired(home, call):
    CliRunner().invoke(app, ["data", "fetch", "shapes-c"], catch_exceptions=False)
    victim = next((home / "home" / "shapes-c").glob("fog*.npy"))
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    code, _, told = call("data", "check")
    assert code == 2
    assert "--repair" in told
    CliRunner().invoke(app, ["data", "check", "--repair"], catch_exceptions=False)
    assert not victim.exists()
