#!/usr/bin/env python3
"""How long `import hvd` takes in a new interpreter, beside a few modules of the standard library.

    import_bench [ROUNDS]

Bytecode is compiled before, as pip does when it installs. Each round starts one interpreter for each, in
turns; processor time is what the import itself took of it, so that a busy machine counts less. For times that
other work does not disturb: `chrt -r 10 build/release/bin/import_bench`. The last line is JSON.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings" / "python"
LIBRARY = Path(os.environ["HVD_BENCH_BIN"]).parent / "lib" / "libhvd.so"
SUBJECTS = {"hvd": "import hvd", "standard library": "import argparse, ctypes, json, pathlib, socket, typing"}
TIMED = """import time
wall, processor = time.perf_counter(), time.process_time()
{}
print((time.perf_counter() - wall) * 1e3, (time.process_time() - processor) * 1e3)"""


def once(statement, bytecode):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.update(PYTHONPATH=str(PACKAGE), PYTHONPYCACHEPREFIX=bytecode, HVD_LIBRARY=str(LIBRARY))
    shown = subprocess.run([sys.executable, "-c", TIMED.format(statement)], check=True, capture_output=True,
                           text=True, env=environment).stdout
    return tuple(map(float, shown.split()))


def main(rounds):
    with tempfile.TemporaryDirectory() as bytecode:
        for statement in SUBJECTS.values():
            once(statement, bytecode)
        taken = {name: [] for name in SUBJECTS}
        for _ in range(rounds):
            for name, statement in SUBJECTS.items():
                taken[name].append(once(statement, bytecode))
    report = {}
    for name, times in taken.items():
        for clock, values in zip(("wall", "processor"), zip(*times)):
            median, low, high = statistics.median(values), min(values), max(values)
            print(f"import {name:17} {clock:9} {median:6.1f} ms ({low:.1f} to {high:.1f}, n={rounds})")
            report[f"import {name}, {clock}"] = {
                "median_us": median * 1e3, "low_us": low * 1e3, "high_us": high * 1e3
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3 if os.environ.get("HVD_BENCH_QUICK") == "1" else 15)
