"""Runs pytest on this directory with the first interpreter that has it and NumPy: run.py [pytest's arguments]

Status 77, which ctest takes for "skipped", if there is none.
"""

import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def interpreters():
    """HVD_PYTHON alone if it is set; else this one, the system's, and those in PATH."""
    if os.environ.get("HVD_PYTHON"):
        return [os.environ["HVD_PYTHON"]]
    found = [sys.executable, "/usr/bin/python3", shutil.which("python3"), shutil.which("python")]
    return list(dict.fromkeys(filter(None, found)))


for python in interpreters():
    probe = [python, "-c", "import sys, numpy, pytest; sys.exit(sys.version_info < (3, 10))"]
    try:
        usable = subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        usable = False
    if usable:
        arguments = [os.path.join(HERE, a) if a.endswith(".py") and not a.startswith("-") else a for a in sys.argv[1:]]
        if not any(not a.startswith("-") for a in arguments):
            arguments.append(HERE)
        os.chdir(os.path.dirname(HERE))
        sys.exit(subprocess.run([python, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments]).returncode)
print("SKIPPED: none of %s has pytest and NumPy (scripts/install-deps.sh bindings installs them for /usr/bin/python3)"
      % ", ".join(interpreters()))
sys.exit(77)
