"""The walls of the house: who includes whom, as docs/architecture.md lists it, and who knows nothing of MPI.
"""
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)) if len(sys.argv) > 1 and Path(
    sys.argv[1]).is_dir() else Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
ANYBODYS = {"base"}  # for all rooms of the library
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
# Doors of their rooms, which many units include: what flatc makes of the messages' schema would take most of
# the time that each of them takes to compile.
DOORS = ["api/handles.h", "elastic/worker.h", "session/session.h", "wire/channel.h"]
MESSAGES = "control_generated.h"
# As a word, or a part of one: ompi-server, MPI_Init, libhvd_mpich.
MPI = re.compile(r"(?<![a-z])((open-?|o)?mpi(ch|run|exec)?|pmix|orted)(?![a-z])", re.I)
FREE_OF_MPI = [
    "CMakeLists.txt", "src/CMakeLists.txt", "cmake/*", "src/agent/*", "src/driver/*", "src/selection/*",
    "src/launch/*", "src/membership/*"
]


def listed():
    """{room: rooms that it may include}, in the order of the page."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"^```rooms\n(.*?)^```$", page, re.S | re.M)
    assert block, "docs/architecture.md has no list of rooms"
    rows = [line.split() for line in block.group(1).splitlines() if line.strip()]
    return {row[0]: set(row[1:]) for row in rows}


def room_of(path):
    """The room of a path below src/; a module is one of its own."""
    parts = Path(path).parts
    return "/".join(parts[:2]) if parts[0] == "modules" and len(parts) > 2 else parts[0]


def sources(room):
    for path in sorted((SRC / room).rglob("*")):
        if path.suffix in (".cc", ".h", ".c") and room_of(path.relative_to(SRC)) == room:
            yield path


def includes(path):
    """Rooms, "hvd/..." and the names of generated files that a source includes."""
    for name in INCLUDE.findall(path.read_text()):
        if name.startswith("hvd/"):
            yield name, name
        elif "/" in name and (SRC / name).exists():
            yield room_of(name), name


def way(source, to, seen):
    """The includes that lead from a source to a file of that name, "a.h > b.h > c.h", or None."""
    if source in seen or not (SRC / source).is_file():
        return None
    seen.add(source)
    for name in INCLUDE.findall((SRC / source).read_text()):
        found = name if name == to else way(name, to, seen)
        if found:
            return "%s > %s" % (source, found)
    return None


class Walls(unittest.TestCase):
    def test_every_room_is_listed_once_and_lists_rooms_above_it(self):
        rooms = listed()
        there = {d.name for d in SRC.iterdir() if d.is_dir() and d.name != "modules"}
        there |= {"modules/" + d.name for d in (SRC / "modules").iterdir() if d.is_dir()}
        self.assertEqual(set(), there - set(rooms), "rooms that docs/architecture.md does not list")
        seen = set(ANYBODYS)
        for room, below in rooms.items():
            self.assertEqual(set(), below - seen,
                             "%s: listed before what it includes: an arrow that runs up" % room)
            seen.add(room)

    def test_rooms_include_what_is_listed_and_nothing_else(self):
        wrong = []
        for room, below in listed().items():
            module = room.startswith("modules/")
            allowed = below | {room} | (set() if module else ANYBODYS)
            for path in sources(room):
                for what, name in includes(path):
                    fits = (name in ("hvd/backend.h", "hvd/backend.hpp")
                            if module else True) if what.startswith("hvd/") else what in allowed
                    if not fits:
                        wrong.append("%s includes %s" % (path.relative_to(ROOT), name))
        self.assertEqual([], wrong)

    def test_modules_include_no_generated_code_of_the_core(self):
        wrong = [str(path.relative_to(ROOT)) for path in (SRC / "modules").rglob("*.[ch]*")
                 if re.search(r'#include ".*_generated\.h"', path.read_text())]
        self.assertEqual([], wrong)

    def test_doors_do_not_lead_to_the_messages(self):
        for door in DOORS:
            self.assertTrue((SRC / door).is_file(), door)
            self.assertIsNone(way(door, MESSAGES, set()))
        self.assertIsNone(way("api/handles.h", "elastic/worker.h", set()))

    def test_the_core_and_the_build_do_not_know_mpi(self):
        wrong = []
        for pattern in FREE_OF_MPI:
            paths = sorted(ROOT.glob(pattern))
            self.assertTrue(paths, pattern)
            for path in paths:
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    if MPI.search(line):
                        wrong.append("%s:%d: %s" % (path.relative_to(ROOT), number, line.strip()))
        self.assertEqual([], wrong)


class TheTestItself(unittest.TestCase):
    def test_sees_the_messages_behind_other_headers(self):
        self.assertEqual("wire/sequence.h > wire/messages.h > " + MESSAGES,
                         way("wire/sequence.h", MESSAGES, set()))

    def test_sees_mpi_in_every_spelling(self):
        for text in ("MPI", "mpi_rules", "OMPI_MCA_x", "libhvd_mpich.so", "Open MPI", "PMIx", "mpirun",
                     "hvd-mpi-helper"):
            self.assertTrue(MPI.search(text), text)
        for text in ("simple", "compile", "implementation", "empire"):
            self.assertFalse(MPI.search(text), text)


if __name__ == "__main__":
    unittest.main()
