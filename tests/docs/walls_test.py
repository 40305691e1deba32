"""The walls of the house: who includes and links whom, as docs/architecture.md lists it, and who knows
nothing of MPI."""
import os.path
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)) if len(sys.argv) > 1 and Path(
    sys.argv[1]).is_dir() else Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
ANYBODYS = {"base"}  # for all rooms of the library
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
SOURCES = {".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp"}
# {fmt}'s code, which base compiles once: to a module it is a library of others. A test holds it to that.
FMT_TARGET, FMT_SOURCE = "hvd_fmt", "base/fmt.cc"
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
        if path.suffix in SOURCES and room_of(path.relative_to(SRC)) == room:
            yield path


def includes(path, src=SRC):
    """(what, name): rooms, "hvd/..." and "?" for what a source names in another way than from src/."""
    text = path.read_text()
    for name in INCLUDE.findall(text):
        if name.startswith("hvd/"):
            yield name, name
        elif re.match(r"\w+_generated\.h$", name):  # by flatc
            for schema in src.rglob(name.replace("_generated.h", ".fbs")):
                yield room_of(schema.relative_to(src)), name
        elif ".." in name or name.startswith("/"):
            yield "?", name
        elif (src / name).exists():
            yield room_of(name), name
        elif (path.parent / name).exists():
            yield "?", name
    # Of a file that an include path leads to, or a macro names.
    for name in re.findall(r'^\s*#\s*include\s+(?:"([^"/]+)"|[A-Za-z_])', text, re.M):
        if not name.endswith("_generated.h") and not (name and (path.parent / name).exists()):
            yield "?", name or "a macro"


def wrong_includes(path, room, below, src=SRC):
    module = room.startswith("modules/")
    allowed = below | {room} | (set() if module else ANYBODYS)
    for what, name in includes(path, src):
        fits = (name in ("hvd/backend.h", "hvd/backend.hpp")
                if module else True) if what.startswith("hvd/") else what in allowed
        if not fits:
            yield "%s includes %s" % (path.relative_to(src.parent), name)


def commands(text, name):
    """The words of each call of a command of CMake."""
    bare = re.sub(r"#.*", "", text)
    return [arguments.split() for arguments in re.findall(r"\b%s\s*\(([^()]*)\)" % name, bare)]


def pattern_of(target):
    """A target's name, where a variable is anything."""
    return re.sub(r"\$\{\w+\}", "*", target)


def wrong_links(src, rooms):
    """What the CMake files of modules compile or link of rooms that docs/architecture.md does not name."""
    files = [(room_of(path.relative_to(src)), path) for path in sorted(src.rglob("CMakeLists.txt"))]
    owners = {}
    for room, path in files:
        room = room if room.startswith("modules/") else "the core"
        for command in ("add_library", "add_executable"):
            for words in commands(path.read_text(), command):
                owners[pattern_of(words[0])] = room
    for room, path in files:
        if not room.startswith("modules/"):
            continue
        allowed, text = rooms[room] | {room}, re.sub(r"#.*", "", path.read_text())
        linked = [word for words in commands(text, "target_link_libraries") for word in words[1:]]
        # Also what a variable or another command brings.
        for target in sorted({pattern_of(word) for word in re.findall(r"\bhvd_[\w${}]+", text)} |
                             {word for word in linked if word == "hvd"}):
            if target in owners and owners[target] not in allowed and target != FMT_TARGET:
                yield "%s links %s, of %s" % (path.relative_to(src.parent), target, owners[target])
        for name in re.findall(r"[\w.${}/-]+\.(?:c|cc|cpp|cxx)\b", text):
            whole = name.replace("${PROJECT_SOURCE_DIR}", str(src.parent))
            whole = whole.replace("${CMAKE_CURRENT_SOURCE_DIR}", str(path.parent))
            if "${" in whole:  # a variable of the file's own, which names a folder of a module
                continue
            file = Path(os.path.normpath(path.parent / whole))
            if src in file.parents and room_of(file.relative_to(src)) not in allowed:
                yield "%s compiles %s" % (path.relative_to(src.parent), file.relative_to(src))


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
        self.assertEqual([], [wrong for room, below in listed().items() for path in sources(room)
                              for wrong in wrong_includes(path, room, below)])

    def test_modules_compile_and_link_what_is_listed_and_nothing_else(self):
        self.assertEqual([], list(wrong_links(SRC, listed())))

    def test_modules_may_link_fmt_since_it_is_no_code_of_ours(self):
        self.assertEqual([[FMT_TARGET, "STATIC", FMT_SOURCE]],
                         [words for words in commands((SRC / "CMakeLists.txt").read_text(), "add_library")
                          if words[0] == FMT_TARGET])
        self.assertEqual(["fmt/format-inl.h"], INCLUDE.findall((SRC / FMT_SOURCE).read_text()))

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

    def test_sees_each_way_of_including(self):
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder) / "src"
            for name in ("base/text.h", "wire/control.fbs", "modules/kit/net.h", "modules/tcp/own.h"):
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                (src / name).write_text("")
            for suffix in SOURCES:
                path = src / "modules/tcp" / ("x" + suffix)
                path.write_text('#include "base/text.h"\n')
                self.assertTrue(list(wrong_includes(path, "modules/tcp", {"modules/kit"}, src)), suffix)
            for wrong in ('"base/text.h"', "<base/text.h>", '"../../base/text.h"', "<../../base/text.h>",
                          '"modules/../base/text.h"', '"text.h"', '"../kit/net.h"', '"control_generated.h"',
                          '"/usr/include/hvd/hvd.h"', '"hvd/hvd.h"', "TEXT"):
                path.write_text("  #  include %s\n" % wrong)
                self.assertTrue(list(wrong_includes(path, "modules/tcp", {"modules/kit"}, src)), wrong)
            for right in ('"modules/tcp/own.h"', '"modules/kit/net.h"', "<string>", "<string.h>",
                          '"hvd/backend.h"', "<openssl/ssl.h>"):
                path.write_text("#include %s\n" % right)
                self.assertEqual([], list(wrong_includes(path, "modules/tcp", {"modules/kit"}, src)), right)

    def test_sees_each_way_of_linking(self):
        rooms = {"modules/tcp": {"modules/kit", "numeric"}, "modules/kit": {"numeric"}}
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder) / "src"
            core = "".join("add_library(%s a.cc)\n" % name for name in ("hvd_core", "hvd", "hvd_fmt"))
            for name, text in (("CMakeLists.txt", core),
                               ("modules/kit/CMakeLists.txt", "add_library(hvd_kit STATIC net.cc)"),
                               ("modules/gloo/CMakeLists.txt", "add_library(hvd_gloo_${x} STATIC a.cc)")):
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                (src / name).write_text(text)
            (src / "modules/tcp").mkdir()
            here = src / "modules/tcp/CMakeLists.txt"
            rooms["modules/gloo"] = set()
            for wrong in ("target_link_libraries(hvd_tcp PRIVATE hvd_kit hvd_core)",
                          "target_link_libraries(hvd_tcp PRIVATE $<LINK_ONLY:hvd_core>)",
                          "target_link_libraries(hvd_tcp PRIVATE hvd_gloo_${x})",
                          "target_link_libraries(hvd_tcp PRIVATE hvd)",
                          "set(more hvd_core)",
                          "target_sources(hvd_tcp PRIVATE $<TARGET_OBJECTS:hvd_core>)",
                          "target_sources(hvd_tcp PRIVATE ${PROJECT_SOURCE_DIR}/src/base/text.cc)",
                          "target_sources(hvd_tcp PRIVATE ../../base/text.cc)",
                          "target_sources(hvd_tcp PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/../gloo/a.cc)"):
                here.write_text("add_library(hvd_tcp MODULE module.cc)\n%s\n" % wrong)
                self.assertEqual(1, len(list(wrong_links(src, rooms))), wrong)
            here.write_text("add_library(hvd_tcp MODULE module.cc ${PROJECT_SOURCE_DIR}/src/numeric/dtype.cc)\n"
                            "target_link_libraries(hvd_tcp PRIVATE hvd_kit hvd_fmt Threads::Threads) # hvd_core\n")
            self.assertEqual([], list(wrong_links(src, rooms)))

    def test_sees_mpi_in_every_spelling(self):
        for text in ("MPI", "mpi_rules", "OMPI_MCA_x", "libhvd_mpich.so", "Open MPI", "PMIx", "mpirun",
                     "hvd-mpi-helper"):
            self.assertTrue(MPI.search(text), text)
        for text in ("simple", "compile", "implementation", "empire"):
            self.assertFalse(MPI.search(text), text)


if __name__ == "__main__":
    unittest.main()
