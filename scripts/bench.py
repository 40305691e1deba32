"""Runs benchmark programs one after another and merges what they print: see bench.sh."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import bench_plot

DEADLINE_S = 1800


def machine():
    facts = {
        "cores": os.cpu_count(), "kernel": os.uname().release,
        "date": time.strftime("%Y-%m-%d", time.gmtime())
    }
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            facts["cpu"] = line.split(":", 1)[1].strip()
            break
    return facts


def run(program, modules, quick):
    """{measurement: {metric: value}} of a program: its lines that are JSON objects, together. The others are
    shown."""
    environment = {**os.environ, "HVD_PLUGIN_PATH": str(modules), "HVD_BENCH_QUICK": "1" if quick else "0"}
    measurements = {}
    process = subprocess.Popen([str(program)], stdout=subprocess.PIPE, text=True, env=environment)
    signal.signal(signal.SIGALRM, lambda *_: process.terminate())  # the programs end what they started
    signal.alarm(DEADLINE_S)
    for line in process.stdout:
        if line.startswith("{"):
            measurements.update(json.loads(line))
        else:
            print(line, end="", flush=True)
    signal.alarm(0)
    if process.wait() != 0 or not measurements:
        raise SystemExit(
            f"{program.name}: exit status {process.returncode}, {len(measurements)} measurements")
    return measurements


def rows(name, value):
    if isinstance(value, dict) and "median_us" in value:
        yield name, f"{value['median_us']:.4g} us ({value['low_us']:.4g} .. {value['high_us']:.4g})"
        for base, over in ratios(value):
            yield from rows(f"{name} over {base}", over)
    elif isinstance(value, dict) and {"median", "low", "high"} <= value.keys():
        yield name, f"{value['median']:.4g} ({value['low']:.4g} .. {value['high']:.4g})"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from rows(f"{name} {key}", inner)
    else:
        yield name, f"{value:.4g}" if isinstance(value, float) else str(value)


def time_text(us):
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if us >= unit:
            return f"{us / unit:.3g} {name}"
    return f"{us:.3g} us"


def ratios(value):
    """What a contender's times were divided by, and the ratios."""
    return [(key[len("over_"):], over) for key, over in value.items() if key.startswith("over_")]


def collectives_tables(report):
    """Markdown: a table a place and operation, medians; in brackets the time over libhvd's (raw: over the
    bare library's), median of the rounds."""
    lines = []
    for place in ("one_host", "two_hosts", "raw_mpi", "raw_gloo", "raw_nccl"):
        for operation, by_ranks in report.get(place, {}).items():
            names = []
            for cell in (cell for sizes in by_ranks.values() for cell in sizes.values()):
                names += [name for name in cell if name not in names]
            lines += ["", f"{operation}, {place.replace('_', ' ')}", "",
                      "| ranks | size | " + " | ".join(name.replace("_", " ") for name in names) + " |",
                      "|---" * (len(names) + 2) + "|"]
            for ranks, sizes in by_ranks.items():
                for size, cell in sizes.items():
                    texts = []
                    for name in names:
                        value = cell.get(name)
                        text = "" if value is None else time_text(value["median_us"])
                        text += "".join(f" (x{over['median']:.3g})" for _, over in ratios(value or {}))
                        texts.append(text)
                    lines.append(f"| {ranks.split()[0]} | {size} | " + " | ".join(texts) + " |")
    return lines


def aims_table(aims):
    lines = ["", "| aim | wanted | measured (range over rounds) | met |", "|---|---|---|---|"]
    for aim in aims:
        measured = "not measured"
        if aim["met"] is not None:
            measured = f"{aim['median']:.3g} ({aim['low']:.3g} .. {aim['high']:.3g})"
        met = {True: "yes", False: "no", None: "-"}[aim["met"]]
        lines.append(f"| {aim['aim']} | {aim['wanted']} | {measured} | {met} |")
    return lines


def main():
    programs, output = Path(sys.argv[1]), Path(sys.argv[2])
    chosen = [argument for argument in sys.argv[3:] if argument != "--quick"]
    found = sorted(path for path in programs.glob("*_bench") if not chosen or path.name in chosen)
    if not found:
        raise SystemExit(f"no benchmark in {programs}" +
                         (f" is called {' or '.join(chosen)}" if chosen else ""))
    report = {"machine": machine()}
    for program in found:
        print(f"running {program.name}", flush=True)
        report.update(run(program, programs.parent / "lib/hvd/1", "--quick" in sys.argv))
        output.write_text(json.dumps(report, indent=1) + "\n")
    collectives, aims = report.pop("collectives", {}), report.pop("aims", [])
    lines = [row for name, value in report.items() for row in rows(name, value)]
    lines += [row for name, value in collectives.get("details", {}).items() for row in rows(name, value)]
    width = max(len(name) for name, _ in lines)
    print()
    for name, value in lines:
        print(f"{name.ljust(width)}  {value}")
    print("\n".join(collectives_tables(collectives) + (aims_table(aims) if aims else [])))
    print(f"\nwritten to {output}")
    if bench_plot.drawable(collectives):
        picture = output.with_suffix(".svg")
        picture.write_text(bench_plot.svg(collectives))
        print(f"drawn in {picture}")


if __name__ == "__main__":
    main()
