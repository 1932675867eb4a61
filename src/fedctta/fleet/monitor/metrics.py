"""A fleet's figures in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Labels = dict[str, str]


class Metric(NamedTuple):
    """What a figure is called (after `fedctta_`), its type, and what it says."""

    name: str
    kind: str
    help: str


METRICS = (
    Metric("info", "gauge", "Versions and methods of the server, as labels; always 1."),
    Metric("server_silent_seconds", "gauge", "Seconds since the server last wrote its status."),
    Metric("waiting_for_devices", "gauge", "1 while the server waits for its first devices."),
    Metric("finished", "gauge", "1 when all rounds of the plan are played."),
    Metric("rounds_closed_total", "counter", "Rounds that were closed."),
    Metric("rounds_planned", "gauge", "Rounds of the plan."),
    Metric("round_seconds", "gauge", "What the last round took."),
    Metric("round_uploads", "gauge", "Uploads that the last round used."),
    Metric("bytes_total", "counter", "Bytes of parcels; direction is up (from devices) or down."),
    Metric("refusals_total", "counter", "Parcels that were refused, of all devices and of strangers."),
    Metric("devices", "gauge", "Devices by state: online, offline or quarantined."),
    Metric("audit_lines", "gauge", "Lines of the audit log."),
    Metric("audit_intact", "gauge", "1 if the audit log is as it was written."),
    Metric("device_info", "gauge", "Version and model of a device, as labels; always 1."),
    Metric("device_online", "gauge", "1 if the device's node is connected and the device answers."),
    Metric("device_quarantined", "gauge", "1 while uploads of the device are ignored."),
    Metric("device_refusals_total", "counter", "Parcels of the device that were refused."),
    Metric("device_adapted", "gauge", "1 if the adapted model answers on the device, 0 if the source model does."),
    Metric("device_estimated_accuracy", "gauge", "Estimated accuracy of the model that answers; without labels."),
    Metric("device_source_accuracy", "gauge", "Estimated accuracy of the source model; without labels."),
    Metric("device_alarms_total", "counter", "Alarms: adapting did harm."),
    Metric("device_skipped_batches_total", "counter", "Batches that the device did not adapt to."),
    Metric("device_last_round", "gauge", "Round of the last upload that was used."),
    Metric("device_domain", "gauge", "Number of the domain that the device is in."),
    Metric("device_domains", "gauge", "Domains that the server knows of the device."),
)


def write_metrics(observed: dict[str, Any]) -> str:
    """Return all figures that are known."""
    found: dict[str, list[tuple[Labels, float]]] = {metric.name: [] for metric in METRICS}
    for name, labels, value in (*_of_server(observed), *_of_devices(observed)):
        if isinstance(value, int | float):
            found[name].append((labels, float(value)))
    lines = []
    for metric in METRICS:
        if samples := found[metric.name]:
            name = f"fedctta_{metric.name}"
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
            lines += [f"{name}{_labels(labels)} {value:.15g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _of_server(seen: dict[str, Any]) -> Iterator[tuple[str, Labels, Any]]:
    if "round" not in seen:
        return
    about = {**seen.get("versions", {}), **seen.get("method", {})}
    yield "info", {key: str(value) for key, value in about.items()}, 1
    history = seen.get("history") or [{}]
    doing = str(seen.get("doing", ""))
    yield from (
        (name, {}, value)
        for name, value in (
            ("server_silent_seconds", seen.get("age")),
            ("waiting_for_devices", doing.startswith("waiting")),
            ("finished", doing == "finished"),
            ("rounds_closed_total", seen.get("round")),
            ("rounds_planned", seen.get("rounds")),
            ("round_seconds", history[-1].get("seconds")),
            ("round_uploads", history[-1].get("uploads")),
            ("refusals_total", seen.get("refused")),
            ("audit_lines", seen.get("audit", {}).get("lines")),
            ("audit_intact", not seen.get("audit", {}).get("breaks")),
        )
    )
    yield from (("bytes_total", {"direction": way}, seen.get(f"bytes_{way}")) for way in ("up", "down"))
    states = [state_of(node) for node in seen.get("nodes", [])]
    yield from (("devices", {"state": state}, states.count(state)) for state in ("online", "offline", "quarantined"))


def _of_devices(seen: dict[str, Any]) -> Iterator[tuple[str, Labels, Any]]:
    for node in seen.get("nodes", []):
        device, health, domains = (
            {"device": str(node.get("device", ""))},
            node.get("health", {}),
            node.get("domains", []),
        )
        yield "device_info", device | {key: str(value) for key, value in node.get("facts", {}).items()}, 1
        yield from (
            (f"device_{name}", device, value)
            for name, value in (
                ("online", node.get("online")),
                ("quarantined", node.get("ignored")),
                ("refusals_total", node.get("refused")),
                ("adapted", health["answers"] == "adapted" if "answers" in health else None),
                ("estimated_accuracy", health.get("accuracy")),
                ("source_accuracy", health.get("source_accuracy")),
                ("alarms_total", health.get("alarms")),
                ("skipped_batches_total", health.get("skipped")),
                ("last_round", node.get("last_round")),
                ("domain", domains[0] if domains else None),
                ("domains", len(domains)),
            )
        )


def state_of(node: dict[str, Any]) -> str:
    """Return a device's state in one word."""
    return "quarantined" if node.get("ignored") else "online" if node.get("online") else "offline"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    told = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return "{" + ",".join(told) + "}"


def _escape(text: str) -> str:
    r"""Write a label's value as the format wants it.

    >>> _escape('a"b\\c')
    'a\\"b\\\\c'
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
