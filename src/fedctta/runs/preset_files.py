"""The TOML files of the package: presets, and published tables and figures. Where they are, and their titles."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedctta.errors import UserError


def presets() -> dict[str, Path]:
    """Return the presets of the package by name."""
    return _files("runs")


def published() -> dict[str, Path]:
    """Return the published tables and figures this package can reproduce, by name."""
    return _files("papers")


def titles(paths: Mapping[str, Path]) -> dict[str, str]:
    """Return the titles of such files, by the same names; a file without one is called by its name."""
    return {name: read_toml(path).get("title", path.stem) for name, path in paths.items()}


def read_toml(path: Path, kind: str = "preset") -> dict[str, Any]:
    """Read a TOML file, or say in one line what is wrong with it; `kind` is what the file is called."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {kind} file {path}: check the path") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read the {kind} {path}: {error}") from None
    if not isinstance(title := content.get("title", ""), str):
        raise UserError(f'{path}: title = {title} must be text: write title = "..."')
    return content


def _files(package: str) -> dict[str, Path]:
    folder = Path(str(files("fedctta").joinpath(package, "presets")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
