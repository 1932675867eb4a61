"""`fedctta methods`."""

from __future__ import annotations

from typer.testing import CliRunner

from fedctta.cli import app


def test_methods_lists_everything_and_calls_the_oracle_no_method(home):
    told = CliRunner().invoke(app, ["methods"], catch_exceptions=False).output
    for name in ("bn", "grad", "fedavg", "fedctta", "niid", "case-fedctta", "resnet8", "wrn-28-10", "demo"):
        assert name in told
    before, after = told.split("upper bounds")
    assert "oracle" not in before
    assert "oracle" in after
