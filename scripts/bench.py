"""Runs benchmark programs one after another and merges what they print: see bench.sh."""
import json
import os
import subprocess
import sys
from pathlib import Path

DEADLINE_S = 900


def machine():
    facts = {"cores": os.cpu_count(), "kernel": os.uname().release}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            facts["cpu"] = line.split(":", 1)[1].strip()
            break
    return facts


def run(program, modules):
    """{measurement: {metric: value}} of a program: its lines that are JSON objects, together."""
    environment = {**os.environ, "HVD_PLUGIN_PATH": str(modules)}
    result = subprocess.run([str(program)], stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, env=environment)
    measurements = {}
    for line in result.stdout.splitlines():
        if line.startswith("{"):
            measurements.update(json.loads(line))
    if result.returncode != 0 or not measurements:
        sys.stderr.write(result.stdout)
        raise SystemExit(f"{program.name}: exit status {result.returncode}, {len(measurements)} measurements")
    return measurements


def rows(name, value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from rows(f"{name} {key}", inner)
    else:
        yield name, f"{value:.4g}" if isinstance(value, float) else str(value)


def main():
    programs, output, chosen = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    found = sorted(path for path in programs.glob("*_bench") if not chosen or path.name in chosen)
    if not found:
        raise SystemExit(f"no benchmark in {programs}" + (f" is called {' or '.join(chosen)}" if chosen else ""))
    report = {"machine": machine()}
    for program in found:
        print(f"running {program.name}", flush=True)
        report.update(run(program, programs.parent / "lib/hvd/0"))
        output.write_text(json.dumps(report, indent=1) + "\n")
    lines = [row for name, value in report.items() for row in rows(name, value)]
    width = max(len(name) for name, _ in lines)
    print()
    for name, value in lines:
        print(f"{name.ljust(width)}  {value}")
    print(f"\nwritten to {output}")


if __name__ == "__main__":
    main()
