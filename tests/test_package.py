"""The package's front: everything it names is there, and nothing is loaded before it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedctta


def test_all_names_are_found():
    assert set(fedctta.__all__) <= set(dir(fedctta))
    for name in fedctta.__all__:
        assert getattr(fedctta, name) is not None
    from fedctta.runs.experiment import run

    assert fedctta.run is run


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = fedctta.nonsense
    with pytest.raises(ImportError):
        from fedctta import nonsense  # noqa: F401


def test_importing_the_package_loads_nothing_else():
    code = "import sys, fedctta; print(*(m for m in sys.modules if m in ('torch', 'numpy') or 'fedctta.' in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
