"""`import hvd` is quick: it brings no framework, and nothing of the standard library that takes long and is
seldom used."""

import subprocess
import sys

HEAVY = {
    "asyncio", "concurrent.futures", "ctypes.util", "email", "hashlib", "http.client", "importlib.metadata",
    "jax", "lightgbm", "logging", "multiprocessing", "numpy", "pyspark", "ray", "ssl", "subprocess",
    "tensorflow", "torch", "unittest", "urllib.request", "xml.etree", "zipfile"
}


def test_what_an_import_brings():
    # Without site: what lies in this interpreter's site-packages may import anything at its start.
    shown = subprocess.run([
        sys.executable, "-S", "-c", "import sys; before = set(sys.modules); import hvd; "
        "print(*sorted(set(sys.modules) - before))"
    ], check=True, capture_output=True, text=True).stdout
    brought = set(shown.split())
    assert "hvd.elastic" in brought
    assert not brought & HEAVY
