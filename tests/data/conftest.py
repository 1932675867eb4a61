from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def tiny_cifar() -> ModuleType:
    """The tiny data sets and the writers of their files, loaded by path so that no test import mode matters."""
    spec = importlib.util.spec_from_file_location("tiny_cifar", Path(__file__).with_name("tiny_cifar.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
