"""Flower's process starter, which tells nobody the token of a run.

Who has this token speaks for the run: asks for its nodes, sends them messages, takes their answers. Flower's starter
gives it to the ServerApp as a word of its command, which every user of the machine can read. Here the ServerApp reads
it from a file without a name that it inherits.

Run as `python -m fedctta.fleet.transport.superexec <options of flower-superexec>`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from fedctta.fleet import flower

WORD = "--token"


def start_process(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that finds the token of its command in a file."""
    words = list(words)
    place = words.index(WORD)
    with tempfile.TemporaryFile() as file:
        file.write(words[place + 1].encode())
        file.seek(0)
        words[place : place + 2] = [f"{WORD}-file", f"/dev/fd/{file.fileno()}"]
        return subprocess.Popen(words, pass_fds=(file.fileno(),), **options)


def main(words: list[str]) -> None:
    """Serve until ended."""
    ours = SimpleNamespace(Popen=start_process, DEVNULL=subprocess.DEVNULL)
    start = flower.replace("flower_superexec", {"subprocess": ours})
    sys.argv = ["flower-superexec", *words]
    start()


if __name__ == "__main__":
    main(sys.argv[1:])
