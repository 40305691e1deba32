"""What editors and type checkers see of the package, which is marked as typed (PEP 561)."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import types

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.parametrize("name", ["hvd", "hvd.torch", "hvd.tensorflow", "hvd.keras", "hvd.jax"])
def test_whatever_is_imported_for_users_is_exported(name):
    """A checker takes no other name of a typed package, and it reads no __all__ that is computed."""
    if name != "hvd":
        pytest.importorskip(name.partition(".")[2])
    module = importlib.import_module(name)
    public = {key for key, value in vars(module).items()
              if not key.startswith("_") and key not in ("annotations", "torch")
              and not isinstance(value, types.ModuleType)}
    assert public <= set(module.__all__)
    assert sorted(set(module.__all__)) == module.__all__
    for key in module.__all__:
        assert hasattr(module, key), f"{key} of __all__ is missing"


def test_a_typed_program_is_accepted(tmp_path):
    mypy = shutil.which("mypy")
    if mypy is None:
        pytest.skip("no mypy (scripts/install-deps.sh bindings)")
    arguments = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", f"--cache-dir={tmp_path}"]

    def check(program):
        return subprocess.run([mypy, *arguments, program], capture_output=True, text=True, timeout=240,
                              cwd=tmp_path, env={**os.environ, "MYPYPATH": os.path.dirname(HERE)})

    done = check(os.path.join(HERE, "typed_program.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import hvd\n\nrank: str = hvd.rank()\nhvd.no_such_name()\n")
    said = check(str(wrong)).stdout
    assert 'wrong.py:3' in said and 'wrong.py:4' in said, said
