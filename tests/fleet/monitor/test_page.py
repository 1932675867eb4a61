"""The page in a real browser: everything is shown, and nothing that a device says is obeyed."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pretended_state import NAMES, write_state

from fedctta.fleet.monitor.observation import Observer
from fedctta.fleet.monitor.web_server import WebServer

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="needs Chromium")]


@pytest.fixture
def browse(tmp_path):
    """Return what a state looks like in a browser, after its scripts have run."""

    def look(state):
        with WebServer("127.0.0.1", 0, Observer(state).observe) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            how = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
            command = (
                BROWSER,
                *how,
                "--virtual-time-budget=3000",
                "--dump-dom",
                f"http://127.0.0.1:{server.server_port}/",
            )
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            server.shutdown()
        return done.stdout

    return look


def text_of(dom, identity):
    found = re.search(rf'<(\w+)[^>]* id="{identity}"[^>]*>(.*?)</\1>', dom, re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", "|", found[2]))


def test_everything_is_shown_and_names_are_text(browse, tmp_path):
    dom = browse(write_state(tmp_path / "state"))
    assert "<title>5/9 fedctta fleet</title>" in dom  # no script of a device has changed it
    assert len(re.findall("<script", dom)) == 1  # ours
    assert "<img" not in dom
    assert text_of(dom, "title") == "Fleet: round 5 of 9"
    devices = text_of(dom, "devices")
    for name in NAMES:
        assert f"|{name}|" in devices
    assert "|in quarantine|" in devices
    assert "|61 %|" in devices
    assert "|not seen yet|" in devices  # device-8 has a key only
    assert "|2 of 5|" in text_of(dom, "facts")
    assert "|2.0 KB|" in text_of(dom, "facts")
    assert "|whole, 4 lines|" in text_of(dom, "facts")
    assert "<img src=x onerror=alert(1)>" in text_of(dom, "refusals")
    assert dom.count("<rect") == 3 * 5 + 4 * 4  # three charts of five rounds, and W
    assert "W of round 4" in text_of(dom, "weights-note")


def test_a_server_that_waits_or_is_silent_and_a_broken_log_are_told(browse, tmp_path):
    state = write_state(
        tmp_path / "state", doing="waiting for devices", why="1 of 2 are here; missing: <b>", written=0.0
    )
    log = state / "audit.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))
    dom = browse(state)
    assert "silent for" in text_of(dom, "state")
    assert text_of(dom, "why") == "1 of 2 are here; missing: <b>"
    assert "broken at line 1" in text_of(dom, "facts")
    assert "deleted" in text_of(dom, "audit-note")


def test_a_folder_without_anything_is_no_error(browse, tmp_path):
    (tmp_path / "status.json").write_text("{}")
    dom = browse(tmp_path)
    assert "No device has joined yet." in dom
    assert "Nothing was refused." in dom
