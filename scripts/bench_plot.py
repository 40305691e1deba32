#!/usr/bin/env python3
"""Draws time over size of the collectives in a report of scripts/bench.sh: bench_plot.py out/bench.json
PICTURE.svg

Broadcast and allreduce side by side, both axes logarithmic, a line for each contender, its range over the
rounds as a band. Colours follow the reader's light or dark theme.
"""
import json
import math
import sys
from html import escape
from pathlib import Path

# Contender: legend, colour in light, colour in dark, dashes.
LINES = {
    "hvd": ("libhvd", "#0550ae", "#79c0ff", ""),
    "hvd_local_off": ("libhvd, local=off", "#0550ae", "#79c0ff", "5 4"),
    "gloo": ("Gloo", "#bc4c00", "#ffa657", ""),
    "openmpi": ("Open MPI", "#1a7f37", "#7ee787", ""),
    "torch_gloo": ("PyTorch gloo", "#8250df", "#d2a8ff", ""),
    "memcpy": ("memcpy, one thread", "#6e7781", "#8b949e", "2 3"),
}
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
WIDTH, HEIGHT = 960, 440
TOP, BOTTOM, LEFT, GAP, PANEL = 56, 330, 66, 76, 395


def size_of(name):
    number, unit = name.split()
    return int(number) * UNITS[unit]


def points(collectives, operation, ranks="4 ranks"):
    """{contender: [(bytes, median, low, high) in microseconds]}, in order of size."""
    lines = {}
    for name, cell in collectives.get("one_host", {}).get(operation, {}).get(ranks, {}).items():
        for contender, value in cell.items():
            if contender in LINES and value["median_us"] > 0:
                low = max(value["low_us"], value["median_us"] / 100)
                lines.setdefault(contender, []).append(
                    (size_of(name), value["median_us"], low, value["high_us"]))
    return {contender: sorted(line) for contender, line in lines.items()}


def drawable(collectives):
    return any(len(line) > 1 for operation in ("broadcast", "allreduce")
               for line in points(collectives, operation).values())


def decade_name(exponent):
    value, unit = (10**exponent, "µs") if exponent < 3 else (10**(exponent - 3),
                                                             "ms") if exponent < 6 else (10**(exponent - 6),
                                                                                         "s")
    return f"{value:g} {unit}"


class Panel:
    def __init__(self, left, sizes, low, high):
        self.left, self.sizes = left, sizes
        self.low, self.high = low, high  # exponents of ten, of microseconds

    def x(self, size):
        first, last = math.log(self.sizes[0]), math.log(self.sizes[-1])
        return self.left + 14 + (PANEL - 28) * (math.log(size) - first) / ((last - first) or 1)

    def y(self, us):
        at = (math.log10(us) - self.low) / (self.high - self.low)
        return BOTTOM - (BOTTOM - TOP) * min(1, max(0, at))

    def frame(self, title, names):
        parts = [f'<text class="title" x="{self.left}" y="{TOP - 14}">{escape(title)}</text>']
        for exponent in range(self.low, self.high + 1):
            y = self.y(10 ** exponent)
            parts.append(f'<path class="grid" d="M{self.left} {y:.1f}h{PANEL}"/>')
            parts.append(f'<text text-anchor="end" x="{self.left - 6}" y="{y + 4:.1f}">'
                         f"{decade_name(exponent)}</text>")
        end, row = 0, 0  # of the label before
        for size in self.sizes:
            x, half = self.x(size), 3.6 * len(names[size])
            row = 1 - row if x - half < end else 0
            end = x + half
            parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{BOTTOM + 4 + 14 * row}"/>')
            parts.append(
                f'<text text-anchor="middle" x="{x:.1f}" y="{BOTTOM + 18 + 14 * row}">{names[size]}</text>')
        parts.append(f'<text text-anchor="middle" x="{self.left + PANEL / 2}" y="{BOTTOM + 50}">'
                     "size of the tensor</text>")
        return parts

    def line(self, contender, line):
        upper = [f"{self.x(size):.1f} {self.y(high):.1f}" for size, _, _, high in line]
        lower = [f"{self.x(size):.1f} {self.y(low):.1f}" for size, _, low, _ in reversed(line)]
        middle = [f"{self.x(size):.1f} {self.y(median):.1f}" for size, median, _, _ in line]
        parts = [f'<path class="band {contender}" d="M{"L".join(upper + lower)}Z"/>',
                 f'<path class="line {contender}" d="M{"L".join(middle)}"/>']
        for at in middle:
            x, y = at.split()
            parts.append(f'<circle class="dot {contender}" cx="{x}" cy="{y}" r="2.6"/>')
        return parts


def theme(ground, text, grid, column):
    rules = [f".ground{{fill:{ground}}}text{{fill:{text}}}.grid{{stroke:{grid}}}"]
    for contender, line in LINES.items():
        rules.append(
            f".line.{contender}{{stroke:{line[column]}}}.dot.{contender},.band.{contender}{{fill:{line[column]}}}"
        )
    return "".join(rules)


def style():
    dashes = "".join(f".line.{name}{{stroke-dasharray:{line[3]}}}" for name, line in LINES.items() if line[3])
    return ("text{font:12px sans-serif}.title{font-size:14px;font-weight:600}.grid{fill:none}"
            ".line{fill:none;stroke-width:2}.band{opacity:.14}" + dashes
            + theme("#ffffff", "#1f2328", "#d8dee4", 1)
            + "@media(prefers-color-scheme:dark){" + theme("#0d1117", "#e6edf3", "#30363d", 2) + "}")


def svg(collectives):
    panels = {operation: points(collectives, operation) for operation in ("broadcast", "allreduce")}
    lines = [line for panel in panels.values() for line in panel.values()]
    if not drawable(collectives):
        raise SystemExit("nothing to draw: no collective was measured at two sizes with 4 ranks on one host")
    times = [value for panel in panels.values() for name, line in panel.items() if name != "memcpy"
             for point in line for value in point[1:]]
    low = max(-1, math.floor(math.log10(min(times))))
    for panel in panels.values():  # a copy of a few bytes takes no time on this scale
        panel["memcpy"] = [point for point in panel.get("memcpy", []) if point[1] >= 10 ** low]
    high = max(low + 1, math.ceil(math.log10(max(times))))
    sizes = sorted({point[0] for line in lines for point in line})
    names = {size_of(name): name for by_size in collectives["one_host"].values()
             for name in by_size.get("4 ranks", {})}
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
             'aria-label="Time of broadcast and allreduce over the size of the tensor, 4 ranks on one host">',
             f"<style>{style()}</style>", f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>']
    for index, (operation, panel_lines) in enumerate(panels.items()):
        panel = Panel(LEFT + index * (PANEL + GAP), sizes, low, high)
        parts += panel.frame(f"{operation}, 4 ranks on one host: time, less is better", names)
        for contender in reversed(LINES):  # libhvd on top
            if panel_lines.get(contender):
                parts += panel.line(contender, panel_lines[contender])
    x = LEFT
    for contender, (legend, *_) in LINES.items():
        if any(panel.get(contender) for panel in panels.values()):
            parts.append(f'<path class="line {contender}" d="M{x} {HEIGHT - 24}h26"/>'
                         f'<text x="{x + 32}" y="{HEIGHT - 20}">{escape(legend)}</text>')
            x += 54 + 7 * len(legend)
    return "\n".join(parts + ["</svg>", ""])


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    report = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(svg(report.get("collectives", {})))


if __name__ == "__main__":
    main()
