from __future__ import annotations

import base64
import errno
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedctta.data import fetch
from fedctta.errors import UserError

CONTENT = bytes(range(256)) * 40
SUM = ("sha256", hashlib.sha256(CONTENT).hexdigest())


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT at /good, half of it at /broken, and nothing elsewhere."""

    def do_GET(self) -> None:
        if self.path not in ("/good", "/broken"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT if self.path == "/good" else CONTENT[: len(CONTENT) // 2])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("progress", [None, True, False])
def test_download_writes_the_file(site: str, tmp_path: Path, progress: bool | None):
    assert fetch.download(f"{site}/good", tmp_path / "new" / "x", SUM, progress).read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("page", "checksum", "message"),
    [
        ("broken", SUM, "broke off at 5120 of 10240 bytes|IncompleteRead"),
        ("good", ("md5", "0" * 32), "md5 differs"),
        ("none", SUM, "Not Found"),
    ],
)
def test_a_failed_download_leaves_nothing(
    site: str, tmp_path: Path, page: str, checksum: tuple[str, str], message: str
):
    with pytest.raises(UserError, match=message) as caught:
        fetch.download(f"{site}/{page}", tmp_path / "x", checksum, False)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "source").write_bytes(CONTENT)

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "file_digest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.download((tmp_path / "source").as_uri(), tmp_path / "to" / "x", SUM, False)
    assert list((tmp_path / "to").iterdir()) == []


def test_a_closed_port_is_a_user_error_at_once(site: str, tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot download http://127.0.0.1:9/x \(.*refused.*\); check the network"):
        fetch.download("http://127.0.0.1:9/x", tmp_path / "x", SUM, False)


def npm_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put an `npm` on the PATH that runs `body`, Python lines that see the arguments as `args`."""
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nimport sys, pathlib\nargs = sys.argv[1:]\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}/nowhere")


INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(b"package").digest()).decode()
PACK = """
assert args[:2] == ["pack", "thing@1.2"] and "--ignore-scripts" in args, args
pathlib.Path("thing-1.2.tgz").write_bytes(b"package")
"""

Stub = Callable[[str], None]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    return lambda body: npm_stub(tmp_path, monkeypatch, body)


def test_npm_package_is_fetched_by_the_client(tmp_path: Path, stub: Stub):
    stub(PACK)
    archive = fetch.npm_package("thing", "1.2", INTEGRITY, tmp_path, False)
    assert archive == tmp_path / "thing-1.2.tgz"
    assert archive.read_bytes() == b"package"


def test_another_npm_package_is_refused_and_removed(tmp_path: Path, stub: Stub):
    stub(PACK)
    with pytest.raises(UserError, match="sha512 differs"):
        fetch.npm_package("thing", "1.2", "sha512-other", tmp_path, False)
    assert not (tmp_path / "thing-1.2.tgz").exists()


def test_npm_failure_is_one_line_with_npms_reason(tmp_path: Path, stub: Stub):
    stub("sys.exit('npm error code ENOTFOUND\\nnpm error a complete log is somewhere')")
    with pytest.raises(UserError, match=r"\(npm error code ENOTFOUND\); check the network") as caught:
        fetch.npm_package("thing", "1.2", INTEGRITY, tmp_path, False)
    assert "\n" not in str(caught.value)


def test_no_npm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no npm command"):
        fetch.npm_package("thing", "1.2", INTEGRITY, tmp_path, False)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Put a function in pip's place; it returns the commands that it will have seen."""

    def answer(code: int = 0, stderr: str = "", wheel: str = "") -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            assert options["timeout"]
            if wheel:
                (Path(command[-1]) / wheel).write_bytes(b"wheel")
            return subprocess.CompletedProcess(command, code, "", stderr)

        monkeypatch.setattr(fetch.subprocess, "run", run)
        return commands

    return answer


def test_a_wheel_is_fetched_by_pip_and_nothing_of_it_is_built(pip: Callable[..., list[list[str]]], tmp_path: Path):
    commands = pip(wheel="thing-1.0-py3-none-any.whl")
    assert fetch.pip_wheel("thing", "1.0", tmp_path).read_bytes() == b"wheel"
    assert commands[0][:5] == [sys.executable, "-m", "pip", "download", "thing==1.0"]
    assert {"--no-deps", "--only-binary=:all:"} <= set(commands[0])


def test_why_pip_failed_is_told_in_one_line(pip: Callable[..., list[list[str]]], tmp_path: Path, monkeypatch):
    pip(1, "WARNING: slow\nERROR: No matching distribution found for thing==1.0\n")
    with pytest.raises(UserError, match=r"cannot fetch thing==1.0 with pip \(ERROR: No matching .*try again$"):
        fetch.pip_wheel("thing", "1.0", tmp_path)
    pip(0)
    with pytest.raises(UserError, match=r"\(pip exit code 0\)"):
        fetch.pip_wheel("thing", "1.0", tmp_path)

    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(fetch.subprocess, "run", hang)
    with pytest.raises(UserError, match="no answer"):
        fetch.pip_wheel("thing", "1.0", tmp_path)

    def refuse(command: list[str], **_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(fetch.subprocess, "run", refuse)
    with pytest.raises(
        UserError, match=r"cannot fetch thing==1\.0 with pip, which does not start: Cannot allocate memory"
    ):
        fetch.pip_wheel("thing", "1.0", tmp_path)


def test_a_file_that_is_packed_anew_for_everybody_needs_no_checksum(site: str, tmp_path: Path):
    assert fetch.download(f"{site}/good", tmp_path / "x").read_bytes() == CONTENT
    with pytest.raises(UserError, match=r"broke off|IncompleteRead"):
        fetch.download(f"{site}/broken", tmp_path / "y")
    assert not (tmp_path / "y").exists()
