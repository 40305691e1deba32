#!/usr/bin/env python3
"""Compares two reports of scripts/bench.sh: bench_compare.py OLD.json NEW.json [--tolerance 0.2] [--relative]

Lists what of libhvd became slower by more than the tolerance and exits with 1 if anything did, 2 if the
reports have nothing in common. What Gloo, MPI and memcpy took in both tells how far the machine itself
changed; --relative takes that out.
"""
import argparse
import json
import statistics
import sys
from pathlib import Path

OTHERS = {"gloo", "openmpi", "torch_gloo", "memcpy", "memcpy_all_cores"}
LESS_IS_BETTER = ("_us", "_ms", "_ns", "_bytes")
MORE_IS_BETTER = ("_GBps",)
SPREAD = {"low_us", "high_us", "low", "high", "worst_ms", "process_ms", "memcpy_GBps"}  # or not libhvd's


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, path + (key,))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, float(value)


def measurements(report):
    """{path: (value, whether less is better)}, libhvd's own and the others'."""
    own, others = {}, {}
    for path, value in leaves({key: part for key, part in report.items() if key not in ("machine", "aims")}):
        if path[-1] in SPREAD or any(key.startswith("over_") for key in path):
            continue
        if path[-1].endswith(LESS_IS_BETTER) or path[-1].endswith(MORE_IS_BETTER):
            (others if OTHERS & set(path) else own)[path] = (value, path[-1].endswith(LESS_IS_BETTER))
    return own, others


def slowdown(old, new):
    """How many times as slow (or large) the new one is."""
    (before, less), (after, _) = old, new
    if before == after:
        return 1.0
    above, below = (after, before) if less else (before, after)
    return above / below if below > 0 else float("inf")


def compare(old, new, tolerance, relative=False):
    """The machine's change, and [(path, old, new, slowdown)] of all measurements in both, worst first."""
    (own_old, others_old), (own_new, others_new) = measurements(old), measurements(new)
    changes = [slowdown(others_old[path], others_new[path]) for path in others_old.keys() & others_new.keys()]
    machine = statistics.median(changes) if changes else 1.0
    rows = [(path, own_old[path][0], own_new[path][0],
             slowdown(own_old[path], own_new[path]) / (machine if relative else 1.0))
            for path in own_old.keys() & own_new.keys()]
    rows.sort(key=lambda row: (-row[3], row[0]))
    return machine, rows, [row for row in rows if row[3] > 1 + tolerance]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.2)
    parser.add_argument("--relative", action="store_true")
    arguments = parser.parse_args()
    old, new = (json.loads(path.read_text()) for path in (arguments.old, arguments.new))
    machine, rows, regressions = compare(old, new, arguments.tolerance, arguments.relative)
    if not rows:
        print("the reports have no measurement in common", file=sys.stderr)
        return 2
    print(f"{len(rows)} measurements in both; the machine itself (Gloo, MPI, memcpy): x{machine:.2f}"
          + (", taken out" if arguments.relative else ""))
    for path, before, after, factor in regressions:
        print(f"x{factor:.2f}  {' / '.join(path)}: {before:g} -> {after:g}")
    better = sum(1 for row in rows if row[3] < 1 / (1 + arguments.tolerance))
    print(
        f"{len(regressions)} worse by more than {arguments.tolerance:.0%}, {better} better by more than that")
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())
