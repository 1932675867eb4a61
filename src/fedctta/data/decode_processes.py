"""Many image files decoded by several processes: threads share one interpreter, and small pictures are mostly Python.

A process reads lines of JSON, `[size, path, ...]`, and answers each with a line of JSON that has for every path the
picture's shape, or why it cannot be read, and then the bytes of all pictures. It is started by its own command,
so that a user's script is not run again, as `multiprocessing` would do.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from fedctta.data.decode_file import decode_or_tell

BLOCK = 256
"""Files that a process decodes at a time."""

Picture = NDArray[np.uint8] | str


def decode_in_processes(paths: Sequence[Path], size: int | None, processes: int) -> Iterator[Picture]:
    """Yield the pictures of files in their order, or why one cannot be read."""
    blocks = [paths[start : start + BLOCK] for start in range(0, len(paths), BLOCK)]
    with _started(processes) as free, ThreadPoolExecutor(processes) as threads:

        def ask(block: Sequence[Path]) -> list[Picture]:
            process = free.get()
            try:
                return _ask(process, block, size)
            finally:
                free.put(process)

        try:
            for found in threads.map(ask, blocks):
                yield from found
        finally:
            threads.shutdown(cancel_futures=True)


@contextmanager
def _started(count: int) -> Iterator[SimpleQueue[subprocess.Popen[bytes]]]:
    """Give processes that wait for work, and end them."""
    command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) for _ in range(count)
    ]
    free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    for process in started:
        free.put(process)
    try:
        yield free
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _ask(process: subprocess.Popen[bytes], block: Sequence[Path], size: int | None) -> list[Picture]:
    """Let a process decode one block."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([size, *map(str, block)]).encode() + b"\n")
    process.stdin.flush()
    forms = json.loads(process.stdout.readline())
    sizes = [0 if isinstance(form, str) else math.prod(form) for form in forms]
    pixels = np.frombuffer(process.stdout.read(sum(sizes)), np.uint8)
    ends = itertools.accumulate(sizes)
    return [
        form if isinstance(form, str) else pixels[end - size : end].reshape(form)
        for form, size, end in zip(forms, sizes, ends, strict=True)
    ]


def serve() -> None:
    """Answer every line of standard input."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    for line in requests:
        size, *paths = json.loads(line)
        found = [decode_or_tell(Path(path), size) for path in paths]
        forms = [each if isinstance(each, str) else each.shape for each in found]
        answers.write(json.dumps(forms).encode() + b"\n")
        answers.writelines(each.tobytes() for each in found if not isinstance(each, str))
        answers.flush()
