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
    environment = {**os.environ, "HVD_PLUGIN_PATH": str(modules)}
    result = subprocess.run([str(program)], stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, env=environment)
    objects = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if result.returncode != 0 or not objects:
        sys.stderr.write(result.stdout)
        raise SystemExit(f"{program.name}: exit status {result.returncode}, {len(objects)} JSON lines")
    return json.loads(objects[-1])


def cell(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_table(name, rows):
    """Rows are dicts; the columns are their keys in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns] + [[cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    print(f"\n{name}")
    for line in lines:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())


def rows_of(report):
    if isinstance(report.get("results"), list):
        return report["results"]
    flat = {key: value for key, value in report.items() if not isinstance(value, (dict, list))}
    nested = [value for value in report.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    return nested[0] if nested else [flat]


def main():
    programs, output, chosen = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    found = sorted(path for path in programs.glob("*_bench") if not chosen or path.name in chosen)
    if not found:
        raise SystemExit(f"no benchmark in {programs}" + (f" is called {' or '.join(chosen)}" if chosen else ""))
    merged = {"machine": machine(), "benchmarks": {}}
    for program in found:
        print(f"running {program.name}", flush=True)
        merged["benchmarks"][program.name] = run(program, programs.parent / "lib/hvd/0")
        output.write_text(json.dumps(merged, indent=1) + "\n")
    for name, report in merged["benchmarks"].items():
        print_table(name, rows_of(report))
    print(f"\nwritten to {output}")


if __name__ == "__main__":
    main()
