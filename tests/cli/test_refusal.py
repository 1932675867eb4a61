"""A word that should have been an option is refused, and an option that should have been a word."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedctta.cli import app
from fedctta.cli.refusal import refuse_options
from fedctta.errors import UserError


def play(name, *, seeds=1, **values):
    """What a command calls."""


def test_settings_pass():
    refuse_options(["clients", "slots"], play, "device")


@pytest.mark.parametrize("key", ["seeds", "name", "device"])
def test_options_and_arguments_are_told(key):
    with pytest.raises(UserError, match=f"{key}= is no setting: for an option write --{key}"):
        refuse_options(["clients", key], play, "device")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--seed", "3"], "--seed is no option: keys are words, write seed=VALUE"),
        (["run", "--source-images=3"], "--source-images is no option: keys are words, write source_images=VALUE"),
        (["run", "demo", "--niid.clusters", "2"], "write niid.clusters=VALUE"),
        (["reproduce", "fedctta-table1", "--batch", "50"], "write batch=VALUE"),
        (["pretrain", "--model", "resnet8"], "write model=VALUE"),
    ],
)
def test_keys_that_come_as_options_are_told(words, told):
    assert told in str(CliRunner().invoke(app, words).exception)


def test_options_of_the_command_are_none_of_these():
    done = CliRunner().invoke(app, ["reproduce", "--device", "cpu"])  # a key of a run, and an option here
    assert "name a table or figure" in str(done.exception)
    assert CliRunner().invoke(app, ["run", "--sed", "3"]).exit_code == 2  # the parser's own refusal


@pytest.mark.parametrize("command", [["run"], ["reproduce"], ["pretrain"], ["doctor"], ["device"], ["fleet", "up"]])
def test_the_usage_names_the_words(command):
    done = CliRunner().invoke(app, [*command, "--no-such-option"], env={"COLUMNS": "200"})
    assert "=VALUE ..." in done.output
