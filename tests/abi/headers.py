"""The functions that the public headers declare, and what was recorded of them in earlier versions."""
import re
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include" / "hvd"
RECORDED = Path(__file__).resolve().parent / "recorded"


def strip_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def declared_functions(header, include=INCLUDE):
    """Names that follow HVD_API in a header, in order of declaration."""
    text = strip_comments((include / header).read_text())
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    names = []
    for declaration in re.findall(r"\bHVD_API\b([^;]*);", text):
        match = re.search(r"\b(hvd_\w+)\s*\(", declaration)
        if match is None:
            raise ValueError(
                f"{header}: HVD_API on something that is not a function: {declaration.strip()!r}")
        names.append(match.group(1))
    return names


def public_functions(include=INCLUDE):
    """Of all headers; some of them are not among those that were recorded first."""
    return [
        name for header in ("hvd.h", "connect.h", "direct.h", "sampler.h", "shards.h", "driver.h")
        if (include / header).exists() for name in declared_functions(header, include)
    ]


def defined(macro, header):
    """The value of a macro, as text."""
    return re.search(rf"^#define {macro} (.*)$", header.read_text(), flags=re.M).group(1)


def recorded_versions(macro, header):
    """Include directories of the recorded versions in which the macro of this header has today's value,
    oldest first."""
    today = defined(macro, INCLUDE / header)
    return sorted(
        (directory
         for directory in RECORDED.iterdir() if defined(macro, directory / "hvd" / header) == today),
        key=lambda directory: [int(part) for part in directory.name.split(".")])
