"""The `fedctta fleet` commands: parse, call, print. What needs Flower is loaded when it is called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from fedctta.cli.console import err, out
from fedctta.cli.device import device
from fedctta.errors import UserError
from fedctta.fleet.processes.live import Live

fleet_app = typer.Typer(no_args_is_help=True, help="The same methods across machines, on Flower.")
fleet_app.command("device")(device)

Words = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE ...", show_default=False)]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no node keys; only on loopback.")]
Insist = Annotated[bool, typer.Option("--insist", help="Allow --insecure where others can reach it.")]

Folder = Annotated[Path, typer.Argument(help="The fleet's folder, or the server's state folder.")]


@fleet_app.command()
def up(
    words: Words = None,
    devices: Annotated[int, typer.Option(help="Devices to start.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds to play.")] = 30,
    dataset: Annotated[str, typer.Option(help="Data set whose stream the devices see.")] = "shapes-c",
    adapter: Annotated[
        str | None, typer.Option(help="What devices do; usually recall, and bn with --lockstep.", show_default=False)
    ] = None,
    aggregator: Annotated[
        str | None,
        typer.Option(help="What the server does; usually recall, and fedctta with --lockstep.", show_default=False),
    ] = None,
    lockstep: Annotated[bool, typer.Option("--lockstep", help="As a simulation: predict after the answer.")] = False,
    pace: Annotated[
        float | None,
        typer.Option(help="Seconds a batch of devices that are not in lock-step; usually 1.", show_default=False),
    ] = None,
    insecure: Insecure = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder for everything.")] = Path("runs/fleet"),
) -> None:
    """Start a whole fleet on this machine, as separate processes on loopback, and end it when all rounds are played.

    Example: fedctta fleet up --devices 4 --rounds 30 --lockstep slots=2
    """
    from fedctta.fleet.processes.launch import Tryout
    from fedctta.fleet.processes.launch import up as run
    from fedctta.runs.settings import parse_single

    _need_flower()
    named = {"dataset": dataset, "adapter": adapter, "aggregator": aggregator}
    named = {key: value for key, value in named.items() if value is not None}
    tryout = Tryout(
        folder, devices, rounds, {**named, **parse_single(words or [], "a fleet")}, {}, lockstep, insecure, pace
    )
    with Live(err, folder / "server" / "server.log") as live:
        try:
            status = run(tryout, live.show)
        except KeyboardInterrupt:
            err.print("stopped; the same command continues with the round it was in")
            raise typer.Exit(130) from None
    from fedctta.fleet.processes.summary import summary

    out.print(summary(folder, status), soft_wrap=True)


@fleet_app.command()
def keys(
    folder: Annotated[Path, typer.Option("--out", help="A new folder.")] = Path("keys"),
    hosts: Annotated[str, typer.Option(help="Names and addresses of the server: a,b.")] = "",
    nodes: Annotated[int, typer.Option(help="Node keys to make.")] = 1,
    add: Annotated[str, typer.Option(help="Name of one more node, for a folder that is there.")] = "",
    revoke: Annotated[str, typer.Option(help="Name of a node that is no longer let in.")] = "",
    renew: Annotated[bool, typer.Option("--renew", help="Renew certificates and the app's signature.")] = False,
) -> None:
    """Make a certificate authority, the server's certificate, node keys and the app that nodes trust.

    What --add, --revoke and --renew change in the server's own folder takes effect within seconds, without a restart.

    Example: fedctta fleet keys --out keys --hosts fleet.example.org,10.0.0.5 --nodes 4
    """
    from fedctta.fleet.transport.certificates import add_node, make_keys, revoke_node
    from fedctta.fleet.transport.certificates import renew as renew_certificates

    if bool(add) + bool(revoke) + renew > 1:
        raise UserError("--add, --revoke and --renew are done one at a time: give one of them")
    if (add or revoke or renew) and (hosts or nodes != 1):
        raise UserError("--hosts and --nodes are for a new folder and have no effect on one that is there: drop them")
    if revoke:
        out.print(f"{revoke_node(folder, revoke)}: its node is put out; --add {revoke} makes a new key", soft_wrap=True)
        return
    if add or renew:
        for path in add_node(folder, add) if add else renew_certificates(folder):
            out.print(str(path), soft_wrap=True)
        copies = "nodes need the new .key" if add else "nodes need the new ca.crt before the old one ends"
        out.print(f"a server that uses this folder takes them up within seconds; {copies}", soft_wrap=True)
        return
    for path in make_keys(folder, [host.strip() for host in hosts.split(",") if host.strip()], nodes):
        out.print(str(path), soft_wrap=True)
    secret = f"keep {folder}/ca.key and app.key away from the machines"
    out.print(f"{secret}; a node needs ca.crt, trusted.yaml and its own .key", soft_wrap=True)


@fleet_app.command()
def server(
    plan: Annotated[Path, typer.Argument(help="The plan, a TOML file with [fleet] and [run].")],
    keys_folder: Annotated[Path | None, typer.Option("--keys", help="Folder made by `fedctta fleet keys`.")] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT at which nodes reach the gate.")] = "127.0.0.1:9092",
    port: Annotated[int, typer.Option(help="The SuperLink's port, on loopback.")] = 8080,
    folder: Annotated[Path, typer.Option("--out", help="Folder for logs and Flower's files.")] = Path("server"),
    insecure: Insecure = False,
    insist: Insist = False,
) -> None:
    """Start the server's part: SuperLink on loopback, a gate for nodes, and the run of a plan.

    Example: fedctta fleet server fleet.toml --keys keys --listen 0.0.0.0:9092
    """
    from fedctta.fleet.processes.process_specs import Link, check_insecure
    from fedctta.fleet.processes.serve import lead, require_ports, start_server
    from fedctta.fleet.processes.supervisor import Supervisor
    from fedctta.fleet.server.conductor import check_place
    from fedctta.fleet.server.ledger import take
    from fedctta.fleet.server.plan import build, load_plan

    _need_flower()
    if not 0 < port < 65536:
        raise UserError(f"--port {port} must lie between 1 and 65535")
    made = load_plan(plan)
    hub, _ = build(made)  # says what is wrong with it before anything is started
    host, outer = _host_and_port(listen)
    keys_folder = _keys(keys_folder, insecure, insist, host, check_insecure)
    link = Link("127.0.0.1", port, keys_folder)
    public: Path | list[Path] = [] if keys_folder is None else keys_folder / "nodes"
    names = sorted(key.stem for key in public.glob("*.pub")) if isinstance(public, Path) else []
    if keys_folder is not None:
        _remind(keys_folder / "server.crt", keys_folder / "ca.crt")
    state = Path(made.state)
    if not folder.exists():  # no earlier command can hold ports and state, and a refusal makes no folder
        require_ports(link, (host, outer))
        check_place(made, hub)
    with take(state), Supervisor(folder / "logs") as supervisor, Live(err, state / "server.log") as live:
        check_place(made, hub)
        try:
            flower = start_server(supervisor, link, folder.resolve() / "flower", public, (host, outer))
            live.tell(f"nodes reach the server at {host}:{outer}; {len(names)} have keys")
            lead(supervisor, flower, plan, live.show)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@fleet_app.command()
def node(
    socket: Annotated[Path, typer.Option(help="Where the device listens (its --socket).")],
    link: Annotated[str, typer.Option("--server", help="HOST:PORT of the server's gate.")] = "127.0.0.1:9092",
    ca: Annotated[Path | None, typer.Option(help="The authority's certificate, ca.crt.")] = None,
    key: Annotated[Path | None, typer.Option(help="This node's private key.")] = None,
    name: Annotated[str, typer.Option(help="What its log is called.")] = "device",
    folder: Annotated[Path, typer.Option("--out", help="Folder for its log.")] = Path("node"),
    insecure: Insecure = False,
    insist: Insist = False,
) -> None:
    """Start the node that speaks for one device of this machine, and keep it running.

    Example: fedctta fleet node --server fleet.example.org:9092 --ca ca.crt --key device-0.key --socket /run/d0.sock
    """
    import time

    from fedctta.fleet.processes.events import NodeReport
    from fedctta.fleet.processes.process_specs import Link, check_insecure
    from fedctta.fleet.processes.process_specs import node as node_spec
    from fedctta.fleet.processes.supervisor import Supervisor
    from fedctta.fleet.transport.certificates import check_name, read_node_key
    from fedctta.fleet.transport.framing import check_path

    _need_flower()
    host, outer = _host_and_port(link)
    check_name(name)
    check_path(socket.resolve())
    if insecure:
        if ca is not None or key is not None:
            raise UserError("--insecure works without keys: drop it, or --ca and --key")
        check_insecure([host], insist)
    elif ca is None or key is None:
        raise UserError("a node needs --ca and --key (see `fedctta fleet keys`), or --insecure on loopback")
    place = Link(host, outer, None if ca is None else ca.resolve().parent)
    if ca is not None and ca.name != "ca.crt":
        raise UserError(f"--ca {ca} must be called ca.crt: rename it")
    if ca is not None and key is not None:
        _remind(ca)
        if not ca.with_name("trusted.yaml").is_file():
            raise UserError(
                f"{ca.with_name('trusted.yaml')} is missing, which says whose app a node runs: copy it from the folder"
                " of keys, where `fedctta fleet keys --renew` makes it"
            )
        read_node_key(key)
    part = node_spec(place, name, socket.resolve(), key and key.resolve())
    with Supervisor(folder / "logs", part.name) as supervisor:
        supervisor.start(part)
        told = NodeReport(folder / "logs" / f"{part.name}.log", socket, link)
        try:
            while True:
                supervisor.tend()
                for line in told.look(supervisor):
                    err.print(
                        f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", markup=False, highlight=False, soft_wrap=True
                    )
                time.sleep(0.5)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@fleet_app.command()
def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Everything that is known, for programs.")] = False,
) -> None:
    """Show what the server last wrote of itself, and its latest refusals."""
    import json

    from fedctta.fleet.monitor.observation import Observer, find_state
    from fedctta.fleet.server.status_table import board

    seen = Observer(find_state(folder)).observe()
    if as_json:
        typer.echo(json.dumps(seen, indent=1))
        return
    out.print(board(seen))
    for told in seen["refusals"][4::-1]:
        who = told.get("device") or told["node"]
        out.print(f"refused in round {told['round']}: {who}: {told['reason']}", markup=False, soft_wrap=True)
    for found in seen["audit"]["breaks"]:
        out.print(f"audit log: line {found['line']} {found['what']}", markup=False, soft_wrap=True)
    if seen["certificate"] and seen["certificate"]["advice"]:
        out.print(f"certificate: {seen['certificate']['advice']}", markup=False, highlight=False, soft_wrap=True)


@fleet_app.command()
def watch(
    folder: Folder,
    listen: Annotated[str, typer.Option(help="HOST:PORT of the page.")] = "127.0.0.1:9095",
    insist: Annotated[bool, typer.Option("--insist", help="Serve it where others can reach it: no password.")] = False,
) -> None:
    """Serve a live page of the fleet, and /metrics for Prometheus. It reads the server's files and changes nothing.

    Example: fedctta fleet watch runs/fleet
    """
    from fedctta.files import exit_when_terminated
    from fedctta.fleet.monitor.observation import Observer, find_state
    from fedctta.fleet.monitor.web_server import WebServer
    from fedctta.fleet.processes.process_specs import is_loopback

    host, port = _host_and_port(listen, least=0)  # 0: any port that is free
    if not is_loopback(host) and not insist:
        raise UserError(
            f"--listen {listen} lets others read the page, which has no password: use 127.0.0.1, or --insist"
        )
    with WebServer(host, port, Observer(find_state(folder)).observe) as server:
        exit_when_terminated()
        name = f"[{host}]" if ":" in host else host
        err.print(f"http://{name}:{server.server_port}/ and /metrics; Ctrl-C ends it", soft_wrap=True, highlight=False)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@fleet_app.command("audit")
def check_audit(
    folder: Folder,
    noted: Annotated[str, typer.Option(help="A hash noted earlier: its line must still be there.")] = "",
) -> None:
    """Check that no line of the audit log was deleted, changed, swapped, cut off or added.

    Example: fedctta fleet audit runs/fleet
    """
    from fedctta.fleet.monitor.observation import find_state
    from fedctta.fleet.server.audit import chain_breaks, last_hash, read_audit

    state = find_state(folder)
    if breaks := chain_breaks(state, noted):
        for found in breaks:
            err.print(f"line {found.line} {found.what}", markup=False, highlight=False, soft_wrap=True)
        raise UserError(f"{state / 'audit.jsonl'} is not as it was written: compare it with a copy that you trust")
    told = f"{len(read_audit(state))} lines, as they were written; the last one has the hash {last_hash(state)}"
    out.print(told, markup=False, highlight=False, soft_wrap=True)


@fleet_app.command()
def proxy(
    keys_folder: Annotated[Path, typer.Option("--keys", help="Folder made by `fedctta fleet keys`.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT for nodes.")] = "0.0.0.0:9092",
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")] = "127.0.0.1:8080",
) -> None:
    """Print an nginx configuration that lets pass only what nodes need, in place of the built-in gate."""
    from fedctta.fleet.transport.nginx import nginx_config

    host, port = _host_and_port(listen)
    _host_and_port(superlink)
    if missing := [name for name in ("ca.crt", "server.crt", "server.key") if not (keys_folder / name).is_file()]:
        raise UserError(f"--keys {keys_folder} lacks {', '.join(missing)}: name the folder of keys on this machine")
    typer.echo(nginx_config(host, port, superlink, keys_folder.resolve()), nl=False)


def _host_and_port(place: str, least: int = 1) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    bare = host.strip("[]")
    named = bare and not re.search(r"[\s/;{}\[\]]", bare)
    if not colon or not named or not re.fullmatch("[0-9]{1,5}", port) or not least <= int(port) <= 65535:
        raise UserError(f"cannot read {place!r}: write HOST:PORT, for example 127.0.0.1:9092")
    return bare, int(port)


def _keys(folder: Path | None, insecure: bool, insist: bool, host: str, check: Any) -> Path | None:
    if insecure:
        if folder is not None:
            raise UserError("--insecure works without the keys of --keys: drop one of them")
        check([host], insist)
        return None
    mend = "make one with `fedctta fleet keys`, or use --insecure on loopback"
    if folder is None:
        raise UserError(f"the server needs --keys FOLDER: {mend}")
    if not (folder / "server.crt").exists():
        what = "holds no server.crt" if folder.is_dir() else "is not there"
        raise UserError(f"--keys {folder} {what}: name the folder of keys, {mend}")
    from fedctta.fleet.transport.certificates import check_server_keys

    check_server_keys(folder)
    return folder.resolve()


def _remind(*certificates: Path) -> None:
    """Say which certificates end soon; refuse those that have ended."""
    from fedctta.fleet.transport.certificates import remind

    for certificate in certificates:
        if line := remind(certificate):
            err.print(line, soft_wrap=True)


def _need_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise UserError("a fleet needs Flower, which is not installed: pip install 'fedctta[fleet]'")
