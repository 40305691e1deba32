"""Runs pytest on this directory with the first interpreter that has it and NumPy: run.py [--needs=MODULE]
[pytest's arguments]

--needs: and this module, for which the one of scripts/frameworks.sh is asked first. Status 77, which ctest
takes for "skipped", if there is none, or if no test is left.
"""

import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FRAMEWORKS = os.path.join(HERE, *[os.pardir] * 3, "build", "frameworks", "bin", "python")
NONE_RAN = 5  # pytest's: each file that was named has skipped itself
NEEDED = [a.partition("=")[2] for a in sys.argv[1:] if a.startswith("--needs=")]


def interpreters():
    """HVD_PYTHON alone if it is set; else this one, the system's, and those in PATH."""
    if os.environ.get("HVD_PYTHON"):
        return [os.environ["HVD_PYTHON"]]
    found = [
        *([FRAMEWORKS] if NEEDED and os.path.exists(FRAMEWORKS) else []), sys.executable, "/usr/bin/python3",
        shutil.which("python3"),
        shutil.which("python")
    ]
    return list(dict.fromkeys(filter(None, found)))


for python in interpreters():
    probe = [
        python, "-c", "import importlib.util, sys, numpy, pytest\n"
        f"sys.exit(sys.version_info < (3, 10) or not all(map(importlib.util.find_spec, {NEEDED!r})))"
    ]
    try:
        usable = subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        usable = False
    if usable:
        arguments = [
            os.path.join(HERE, a) if a.endswith(".py") and not a.startswith("-") else a for a in sys.argv[1:]
            if not a.startswith("--needs=")
        ]
        if not any(not a.startswith("-") for a in arguments):
            arguments.append(HERE)
        os.chdir(os.path.dirname(HERE))
        status = subprocess.run(
            [python, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-v", "-rs", *arguments]).returncode
        sys.exit(77 if status == NONE_RAN else status)
print("SKIPPED: none of %s has pytest and %s (%s)" %
      (", ".join(interpreters()), " and ".join(["NumPy", *NEEDED]), "scripts/frameworks.sh installs them"
       if NEEDED else "scripts/install-deps.sh bindings installs them for /usr/bin/python3"))
sys.exit(77)
