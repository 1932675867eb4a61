"""An experiment as a frozen description, and how words become one.

A description is written as `key=value` words, keyword arguments or a TOML preset. Several values under one key are a
sweep: every combination is one experiment. Unknown keys are errors.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.errors import UserError, either, unknown
from fedctta.keys import DEFAULTS, KEYS, LARGEST_SEED, LIMITS, Keys
from fedctta.registry import Registry, defaults, parameter_types, read, type_of
from fedctta.runs.preset_files import presets, read_toml
from fedctta.sampling import samplers
from fedctta.streams import schedules
from fedctta.uploads.privacy import check_budget
from fedctta.uploads.robust import Robust

ALONE = "local"
"""The aggregator of experiments in which there is nothing to share."""

_OF_ADAPTING = ("check", "guard", "storage")  # without effect where nothing is adapted

_OF_SENDING = ("noise", "epsilon", "interval", "stragglers", "robust", "liars", "min_batch")  # of what clients send


@dataclass(frozen=True)
class Experiment(Keys):
    """One run, described by names and numbers.

    `clients=None` takes the stream's number, `slots=None` as many as there are images for, up to the papers' 50.
    Batches are predicted after adapting and after the server's answer, or with `predict=before` before both. A
    share `stragglers` of uploads is 1 to `delay` rounds late and has the weight decay^age, or none with `stale=refuse`.
    `robust` is how the server protects its mixing (with `cap`, `clip` and `trim`); `liars` clients tell a `lie`.
    `noise`, or the noise for `epsilon` and `delta`, is added to uploaded statistics; clients with batches below
    `min_batch` upload nothing. With `retention`, this number of images of every domain met is predicted again whenever
    a domain is left for the last time (forgetting). With `check`, the health of every client is watched without labels,
    on the first batches and then on one of so many; `guard` acts on what is found. With `storage=bf16`, clients keep
    their own kernels and matrices in bfloat16 from round to round, and compute in float32. `engine` plays the rounds:
    ours, or Flower's simulation, which is slower and gives the same. `layout` and `size` are for folders of images and
    masks (dataset=masked).
    `parameters` holds the methods' own, by method and parameter name.
    """

    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if isinstance(value, float) and not isfinite(value):
                raise UserError(f"{key}={value} must be finite")
        for key, limits in LIMITS.items():
            if (value := getattr(self, key)) is not None:
                limits.require(value, key)
        Robust(self.robust, self.cap, self.clip, self.trim)  # says what is wrong with them
        check_budget(self.epsilon, self.delta)
        if self.epsilon is not None and self.noise is not None:
            raise UserError("epsilon and noise say the same thing twice: give one of them")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UserError(f"seed={self.seed} must be between 0 and {LARGEST_SEED}")

    def method(self, registry: Registry[Any], name: str) -> Any:
        """Make the named method with the parameters given for it.

        An adapter and an aggregator may have the same name; each takes the parameters that it has.
        """
        given = self.parameters.get(name, {})
        if sum(name in other.classes() for other in _REGISTRIES.values()) > 1:
            given = {key: value for key, value in given.items() if key in parameter_types(registry.classes()[name])}
        return registry.create(name, given)

    @property
    def fingerprint(self) -> str:
        """A short hash of the description: of what differs from the defaults, so that a new key changes no old hash."""
        return hash_words(self.words)

    @property
    def words(self) -> dict[str, Any]:
        """What differs from the defaults."""
        told = {key: value for key, value in vars(self).items() if value != DEFAULTS.get(key, {})}
        return told | ({"parameters": _plain(self.parameters)} if self.parameters else {})

    @property
    def anywhere(self) -> Experiment:
        """The same experiment for any device: what computes it does not change what is asked."""
        return self if self.device == "auto" else replace(self, device="auto")


def hash_words(words: Mapping[str, Any]) -> str:
    """Return the fingerprint of the experiment that differs from the defaults in these words."""
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:12]


def _plain(parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(values) for name, values in parameters.items()}


_REGISTRIES: dict[str, Registry[Any]] = {
    "adapter": adapters,
    "aggregator": aggregators,
    "stream": schedules,
    "samples": samplers,
}


def parse_words(words: Iterable[str]) -> dict[str, list[str]]:
    """Split `key=a,b` words into {"key": ["a", "b"]}.

    >>> parse_words(["seed=0,1", "fedctta.temperature=0.5"])
    {'seed': ['0', '1'], 'fedctta.temperature': ['0.5']}
    """
    values: dict[str, list[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        options = [part.strip() for part in text.split(",") if part.strip()]
        if not equals or not key or not options:
            raise UserError(f"cannot read {word!r}: write key=value, for example seed=0,1,2")
        if key in values:
            raise UserError(f"{key} is given twice: write {key}={','.join([*values[key], text])} to run both")
        values[key] = options
    return values


def parse_single(words: Iterable[str], what: str) -> dict[str, str]:
    """Split `key=value` words where `what` takes one value per key.

    >>> parse_single(["epochs=2", "corruptions=fog+snow"], "a training")
    {'epochs': '2', 'corruptions': 'fog+snow'}
    """
    values = parse_words(words)
    for key, options in values.items():
        if len(options) > 1:
            raise UserError(f"{key} has {len(options)} values and {what} takes one: give one (names are joined by +)")
    return {key: options[0] for key, options in values.items()}


def expand(values: Mapping[str, Any]) -> list[Experiment]:
    """Return every combination of the values; a key holds one value or a list of them.

    Combinations that differ only in what cannot matter (a parameter of a method not in the run, an aggregator where
    nothing is adapted, `predict` where it changes nothing) are one experiment.
    """
    methods = _methods()
    choices: dict[str, list[Any]] = {}
    for key, value in values.items():
        options = list(value) if isinstance(value, (list, tuple)) else [value]
        if not options:
            raise UserError(f"{key} is an empty list: give it a value, or drop the key")
        choices[key] = [_read_option(key, option, methods) for option in options]
    experiments: dict[str, Experiment] = {}
    used: set[str] = set()
    for combination in itertools.product(*choices.values()):
        experiment, its_keys = _assemble(dict(zip(choices, combination, strict=True)))
        used |= its_keys
        experiments.setdefault(experiment.fingerprint, experiment)
    _refuse_idle_parameters(choices, used, methods)
    for key in _OF_SENDING:
        if set(choices.get(key, ())) - {DEFAULTS[key]} and not any(_sends(e) for e in experiments.values()):
            raise UserError(f"{key} has no effect: nothing is sent in these runs; drop it, or use another aggregator")
    sending = [e for e in experiments.values() if _sends(e)]
    if sending and all(e.batch < e.min_batch for e in sending):
        raise UserError(
            f"min_batch={sending[0].min_batch} is above batch={sending[0].batch}, so that nobody would share anything:"
            f" lower min_batch, raise batch, or use aggregator={ALONE}"
        )
    refuse_idle_guards(choices, list(experiments.values()))
    for key in _OF_ADAPTING:
        usual = DEFAULTS[key]
        if set(choices.get(key, ())) - {usual} and all(getattr(e, key) == usual for e in experiments.values()):
            raise UserError(f"{key} has no effect: nothing is adapted in these runs; drop it")
    if "before" in choices.get("predict", ()) and "predict" not in used:
        raise UserError("predict=before has no effect: these runs predict the same before and after adapting; drop it")
    return list(experiments.values())


def _refuse_idle_parameters(keys: Iterable[str], used: set[str], methods: Mapping[str, list[str]]) -> None:
    """Refuse parameters of methods that are in no run."""
    for key in keys:
        if "." in key and key not in used:
            name, _, parameter = key.partition(".")
            kinds = either(kind for kind in methods[name] if parameter in _parameters(kind, name))
            raise UserError(f"{key} has no effect: {kinds} {name} is in none of the runs; drop the key")


def refuse_idle_guards(choices: Mapping[str, Sequence[Any]], experiments: Sequence[Experiment]) -> None:
    """Refuse values of keys that no experiment uses: they would promise a protection that is not there."""
    for way in ("cap", "clip", "trimmed"):
        key = "trim" if way == "trimmed" else way
        if set(choices.get(key, ())) - {DEFAULTS[key]} and all(e.robust != way for e in experiments):
            raise UserError(f"{key} has no effect without robust={way}: add it, or drop {key}")
    for key in ("delay", "stale", "decay"):
        if set(choices.get(key, ())) - {DEFAULTS[key]} and not any(e.stragglers for e in experiments):
            raise UserError(f"{key} has no effect without stragglers: say stragglers=0.2, or drop it")
    if set(choices.get("delta", ())) - {DEFAULTS["delta"]} and not any(e.epsilon or e.noise for e in experiments):
        raise UserError("delta has no effect without epsilon or noise: say epsilon=8, or drop it")
    if set(choices.get("lie", ())) - {DEFAULTS["lie"]} and not any(e.liars for e in experiments):
        raise UserError("lie has no effect without liars: say liars=2, or drop it")


def _sends(experiment: Experiment) -> bool:
    return aggregators.classes()[experiment.aggregator].communicates


def single(values: Mapping[str, Any], strict: bool = False) -> Experiment:
    """Return the one experiment of single values.

    Parameters of methods that are not in it have no effect; with `strict` they are refused.
    """
    methods = _methods()
    experiment, used = _assemble({key: _read_option(key, value, methods) for key, value in values.items()})
    if strict:
        _refuse_idle_parameters(values, used, methods)
    return experiment


def _methods() -> dict[str, list[str]]:
    """Return of which kinds the methods of every name are."""
    kinds: dict[str, list[str]] = {}
    for kind, registry in _REGISTRIES.items():
        for name in registry.classes():
            kinds.setdefault(name, []).append(kind)
    return kinds


def _read_option(key: str, option: Any, methods: Mapping[str, list[str]]) -> Any:
    if key in KEYS:
        return read(option, KEYS[key], key)
    name, dot, parameter = key.partition(".")
    if name not in methods:
        raise unknown("method" if dot else "key", name, methods if dot else KEYS)
    hints: dict[str, Any] = {}
    for kind in methods[name]:
        hints |= _parameters(kind, name)
    if not dot and hints:
        raise UserError(f"unknown key {key!r}: its parameters are keys, {', '.join(f'{key}.{each}' for each in hints)}")
    if not dot:
        raise unknown("key", key, KEYS)
    return read(option, type_of(name, parameter, hints), key)


def _parameters(kind: str, name: str) -> dict[str, Any]:
    return parameter_types(_REGISTRIES[kind].classes()[name])


def _assemble(values: dict[str, Any]) -> tuple[Experiment, set[str]]:
    plain = {key: value for key, value in values.items() if "." not in key}
    for kind, registry in _REGISTRIES.items():
        registry.find(plain.get(kind, DEFAULTS[kind]))
    if not adapters.classes()[plain.get("adapter", DEFAULTS["adapter"])].adapts:
        # nothing is adapted, so there is nothing to aggregate or to store, and nothing that does harm
        plain |= {"aggregator": ALONE, **{key: DEFAULTS[key] for key in _OF_ADAPTING}}
    usual: dict[str, dict[str, Any]] = {}  # of every method in the run: its parameters, and their defaults
    for kind, registry in _REGISTRIES.items():
        cls = registry.classes()[name := plain.get(kind, DEFAULTS[kind])]
        usual.setdefault(name, {}).update(dict.fromkeys(parameter_types(cls), MISSING) | defaults(cls))
    parameters: dict[str, dict[str, Any]] = {}
    used = set()
    for key, value in values.items():
        name, dot, parameter = key.partition(".")
        if dot and parameter in usual.get(name, ()):
            used.add(key)
            if value != usual[name][parameter]:  # said or not, it is the same experiment
                parameters.setdefault(name, {})[parameter] = value
    experiment = Experiment(**plain, parameters=parameters)
    if experiment.guard != "off" and not experiment.check:
        raise UserError(f"guard={experiment.guard} acts on what checks find and check=0 asks for none: give check=10")
    if experiment.predict == "before":
        communicates = aggregators.classes()[experiment.aggregator].communicates
        if experiment.method(adapters, experiment.adapter).predicts_alike(communicates):
            experiment = replace(experiment, predict="after")  # the same experiment
        else:
            used.add("predict")
    return experiment, used


@dataclass(frozen=True)
class Preset:
    """A named set of experiments, with the numbers a paper printed for them (percent, by label and column)."""

    title: str
    values: Mapping[str, Any]
    published: Mapping[str, Mapping[str, float]]
    own: bool = False  # a file of the user's


def load_preset(name: str) -> Preset:
    """Read a preset by name, or from a TOML file of the user's."""
    known = presets()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise unknown("preset", name, known)
    content = read_toml(path)
    allowed = {"title", "run", "published"}
    for key in content:
        if key not in allowed:
            raise unknown(f"table in {path.name}", key, allowed)
        if key != "title" and not isinstance(content[key], dict):
            raise UserError(f"{path}: {key} must be a table: write [{key}] and its values below")
    if not content.get("run"):
        raise UserError(f"{path}: there is nothing to run: write [run] and key = value below, as in fedctta run")
    published = content.get("published", {})
    for label, numbers in published.items():
        if not isinstance(numbers, dict):
            raise UserError(f"{path}: published numbers of {label!r} must be a table: write {{ niid = 66.23 }}")
        for column, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise UserError(f"{path}: published number {number!r} of {label!r}, {column}: write 66.23")
    return Preset(content.get("title", path.stem), dotted(content["run"]), published, name not in known)


def dotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """Write a method's table of parameters as dotted keys.

    >>> dotted({"seed": 0, "fedctta": {"temperature": 0.5}})
    {'seed': 0, 'fedctta.temperature': 0.5}
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            values |= {f"{key}.{parameter}": v for parameter, v in value.items()}
        else:
            values[key] = value
    return values
