"""The Flower ServerApp: reads its plan and leads the fleet through its rounds.

The run's configuration names the plan's file (`plan="/srv/fedctta/fleet.toml"`) on the server's machine; its paths of
weights and state are also on that machine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedctta.errors import NoRoom, UserError
from fedctta.files import make_writable, open_private
from fedctta.fleet.flower import Context, Grid, ServerApp
from fedctta.fleet.server.conductor import Conductor
from fedctta.fleet.server.ledger import FolderTaken, write_failure
from fedctta.fleet.server.plan import build, load_plan
from fedctta.fleet.server.plan_changes import note_plan
from fedctta.fleet.transport.flower_messages import Questions

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Lead the fleet of the plan; a server that was stopped continues where it was."""
    place = context.run_config.get("plan")
    if not isinstance(place, str) or not place:
        raise UserError("the run does not name its plan: start it with --run-config 'plan=\"/path/to/fleet.toml\"'")
    plan = load_plan(Path(place))
    with logged(Path(plan.state) / "server.log"), told(Path(plan.state)):
        hub, examiner = build(plan)
        conductor = Conductor(plan, hub, examiner, Questions(grid, plan.ttl))
        try:
            note_plan(plan, conductor.place.round)
            conductor.lead()
        finally:
            conductor.ledger.close()


class OneLine(logging.Formatter):
    """Writes a message on one line and without control characters, whatever a device says."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback after it keeps its lines."""
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in super().formatMessage(record))


@contextmanager
def told(state: Path) -> Iterator[None]:
    """Tell the command that started the run what only the user can put right; it would submit the run for ever."""
    try:
        yield
    except (FolderTaken, NoRoom):  # these pass: the old server ends, and room is made
        raise
    except UserError as error:
        write_failure(state, str(error))
        raise


class PrivateLog(RotatingFileHandler):
    """A log that only its user may read, whichever file it is in."""

    def _open(self) -> TextIOWrapper:
        open_private(Path(self.baseFilename), "a").close()
        return super()._open()


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Write what happens to a file, of at most 2 x 10 MB: Flower does not keep what a ServerApp prints."""
    make_writable(path.parent)
    handler = PrivateLog(path, maxBytes=10 << 20, backupCount=1, encoding="utf-8")
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("fedctta.fleet")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    except Exception:
        logger.exception("the server ends")
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()
