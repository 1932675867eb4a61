"""Models told apart by what they compute."""

from __future__ import annotations

import sys

from torch import nn

from fedctta.core.model_code import hash_code

SOURCE = """
from torch import nn

class Mine(nn.Module):
    def forward(self, x):
        return x

def make():
    return Mine()
"""


def written(folder, name, source):
    """Write and import a module of code, new each time."""
    (folder / f"{name}.py").write_text(source)
    code = compile(source, str(folder / f"{name}.py"), "exec")
    module = type(sys)(name)
    module.__file__ = str(folder / f"{name}.py")
    sys.modules[name] = module
    exec(code, module.__dict__)
    return module


def test_edited_code_is_told_apart_and_equal_code_is_not(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "written_model", None)  # forgotten after the test
    first = hash_code(written(tmp_path, "written_model", SOURCE).make(), "mine")
    assert hash_code(written(tmp_path, "written_model", SOURCE).make(), "mine") == first
    assert hash_code(nn.Sequential(written(tmp_path, "written_model", SOURCE).make()), "mine") != first
    edited = SOURCE.replace("return x", "return -x")
    assert hash_code(written(tmp_path, "written_model", edited).make(), "mine") != first


def test_the_function_that_makes_a_model_of_torch_layers_counts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "written_model", None)
    model = nn.Linear(2, 2)
    assert hash_code(model, "linear") == hash_code(nn.Linear(2, 2), "resnet8")
    written(tmp_path, "written_model", SOURCE)
    first = hash_code(model, "written_model:make")
    written(tmp_path, "written_model", SOURCE + "# edited")
    assert hash_code(model, "written_model:make") != first != hash_code(model, "linear")


def test_settings_of_layers_count_and_addresses_do_not():
    assert hash_code(nn.MaxPool2d(2), "") != hash_code(nn.MaxPool2d(2, padding=1), "")

    class Told(nn.Identity):
        def extra_repr(self):
            return str(object())

    assert hash_code(Told(), "") == hash_code(Told(), "")
