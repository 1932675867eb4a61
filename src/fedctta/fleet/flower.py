"""All that is used of Flower: which names, and from which of its modules. Nothing else in the package imports it.

Flower moves names between its minor versions: for a new one, `missing()` lists what it lacks. A name is imported when
it is first asked for, because a node needs little of Flower and starts in half the time without the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedctta.errors import UserError

OLDEST, NEWEST = "1.40", "1.42"
"""The minor versions that the tests of a fleet pass with, as in pyproject.toml."""

if TYPE_CHECKING:
    from flwr.app import Array as Array
    from flwr.app import ArrayRecord as ArrayRecord
    from flwr.app import Context as Context
    from flwr.app import Error as Error
    from flwr.app import Message as Message
    from flwr.app import RecordDict as RecordDict
    from flwr.clientapp import ClientApp as ClientApp
    from flwr.serverapp import Grid as Grid
    from flwr.serverapp import ServerApp as ServerApp
    from flwr.supercore.auth.typing import AccountInfo as AccountInfo
    from flwr.supercore.fab import Fab as Fab
    from flwr.supercore.run import Run as Run
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin as NoOpControlAuthnPlugin

NAMES = {
    "flwr.app": ("Array", "ArrayRecord", "Context", "Error", "Message", "RecordDict"),
    "flwr.cli.build": ("build_fab_from_files",),
    "flwr.clientapp": ("ClientApp",),
    "flwr.common.constant": ("ACCESS_TOKEN_KEY",),
    "flwr.common.serde": ("fab_to_proto", "user_config_to_proto"),
    "flwr.proto.control_pb2": (
        "ListNodesRequest",
        "ListRunsRequest",
        "RegisterNodeRequest",
        "StartRunRequest",
        "UnregisterNodeRequest",
    ),
    "flwr.serverapp": ("Grid", "ServerApp"),
    "flwr.simulation": ("run_simulation",),
    "flwr.supercore.auth.typing": ("AccountInfo",),
    "flwr.supercore.control": ("ControlHttpClient",),
    "flwr.supercore.error": ("ApiErrorCode", "FlowerError"),
    "flwr.supercore.fab": ("Fab",),
    "flwr.supercore.inflatable.inflatable_object": (
        "get_all_nested_objects",
        "get_object_tree",
        "no_object_id_recompute",
    ),
    "flwr.supercore.inflatable.inflatable_utils": (
        "ObjectPullError",
        "ObjectPushError",
        "pull_and_inflate_object_from_tree",
        "push_objects",
    ),
    "flwr.supercore.interceptors.http.runtime_version": ("RuntimeVersionHttpInterceptor",),
    "flwr.supercore.run": ("Run", "RunNotRunningException"),
    "flwr.supercore.state.schema.corestate_models": ("ObjectPushSession", "ObjectPushSessionRoot"),
    "flwr.supercore.state.schema.linkstate_models": ("MessageRes",),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.superlink.auth_plugin": ("NoOpControlAuthnPlugin",),
    "flwr.superlink.main": ("runtime_handlers",),
    "flwr.supernode.fleet_http_connection": ("http_request_response",),
}
REPLACED = {
    "flower_superlink": {
        "load_control_authn_plugin": "flwr.superlink.cli.flower_superlink",
        "Fab": "flwr.superlink.servicer.control.control_handlers",
    },
    "flower_superexec": {"subprocess": "flwr.supercore.superexec.executor.subprocess_executor"},
}
"""What `transport.superlink` and `transport.superexec` put something of their own in the place of, by module."""
_PROGRAMS = {
    "flower_superlink": "flwr.superlink.cli.flower_superlink",
    "flower_superexec": "flwr.supercore.cli.flower_superexec",
}

_HOME = {name: module for module, names in NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import one of Flower's names."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _get(_HOME[name], name)
    return found


def replace(program: str, ours: dict[str, Any]) -> Callable[[], None]:
    """Put our own parts into a program of Flower; return what starts it. Rather no server than an open one."""
    assert ours.keys() == REPLACED[program].keys()
    homes = {name: import_module(module) for name, module in REPLACED[program].items()}
    for name, home in homes.items():
        _get(home.__name__, name)
    for name, home in homes.items():
        setattr(home, name, ours[name])
    start: Callable[[], None] = _get(_PROGRAMS[program], program)
    return start


def missing() -> list[str]:
    """Return the names that the Flower installed here lacks."""
    wanted = [*_HOME.items(), *_PROGRAMS.items(), *(item for parts in REPLACED.values() for item in parts.items())]
    lacking = []
    for name, module in wanted:
        try:
            _get(module, name)
        except UserError as error:
            lacking.append(str(error))
    return lacking


def _get(module: str, name: str) -> Any:
    try:
        home: ModuleType = import_module(module)
        return getattr(home, name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr" or error.name == "flwr":
            raise UserError("a fleet needs Flower, which is not installed: pip install 'fedctta[fleet]'") from error
        raise UserError(_other(module, name)) from error
    except AttributeError as error:
        raise UserError(_other(module, name)) from error


def _other(module: str, name: str) -> str:
    return f"this version of Flower has no {module}.{name}; {OLDEST} to {NEWEST} have: pip install 'fedctta[fleet]'"
