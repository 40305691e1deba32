"""docs/options.md from the library's own list of options: see options-doc.sh."""
import ctypes
import difflib
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"
LIBRARY = PAGE.parents[1] / "build/release/lib/libhvd.so"
LINE = re.compile(r"(\w+) \((\w+), default (.*), (HVD_\w+)\): (.*)")
# The first option of each part; the library lists them in this order.
PARTS = {"job": "Workers and driver", "driver": "Workers", "np": "Driver"}

HEAD = """# Options

Made from `hvd_options_describe` by `scripts/options-doc.sh`: don't edit.

An option is set by key (`hvd_options_set`), by its environment variable, or for the driver by `hvdrun`'s
command line. What a program sets wins over the environment. Values are checked when they are set; one that
does not fit is refused with its key, the value and what was expected. A duration is a number of seconds, or
has a unit: `ns`, `us`, `ms`, `s`, `m`, `h` or `d` (`250ms`, `1.5s`, `2m`).
"""


def describe(library):
    function = ctypes.CDLL(str(library)).hvd_options_describe
    function.restype = ctypes.c_char_p
    return function().decode()


def page(description):
    lines = [HEAD]
    for line in description.splitlines():
        match = LINE.fullmatch(line)
        if match is None:
            raise SystemExit(f"not a line that describes an option: {line!r}")
        key, kind, default, variable, meaning = match.groups()
        if key in PARTS:
            lines += [
                f"\n## {PARTS[key]}\n", "| key | type | default | environment | meaning |",
                "|---|---|---|---|---|"
            ]
        default = "" if default == "none" else f"`{default}`"
        lines.append(
            f"| `{key}` | {kind} | {default} | `{variable}` | {meaning.replace('|', chr(92) + '|')} |")
    missing = [title for title in PARTS.values() if f"\n## {title}\n" not in lines]
    if missing:
        raise SystemExit(f"no option begins the part {missing}: look at PARTS")
    return "\n".join(lines) + "\n"


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    text = page(describe(Path(arguments[0]).resolve() if arguments else LIBRARY))
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return
    old = PAGE.read_text() if PAGE.exists() else ""
    if old != text:
        sys.stdout.writelines(
            difflib.unified_diff(old.splitlines(True), text.splitlines(True), "docs/options.md",
                                 "hvd_options_describe"))
        raise SystemExit("docs/options.md is not current: run scripts/options-doc.sh")


if __name__ == "__main__":
    main()
