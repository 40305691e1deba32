"""hvd/backend.h beside the one that is frozen: backend_abi_test.py C-COMPILER
Modules are built against a header and meet later libraries. Structs with struct_size may get fields at their end, the
others stay as they are; no value of an enum or a number of the ABI changes. Says what has."""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from headers import strip_comments

COMPILER = sys.argv.pop(1)
HERE = Path(__file__).resolve().parent
FROZEN = (HERE / "frozen", HERE / "recorded" / "0.1")  # backend.h, and the hvd.h of its time
TODAY = (HERE.parents[1] / "include",)


def text_of(include, header):
    path = next(directory / "hvd" / header for directory in include if (directory / "hvd" / header).exists())
    text = strip_comments(path.read_text())
    return re.sub(r"^\s*#(?!\s*define).*$", "", text, flags=re.M)


def structs_of(include):
    """Name to fields, of the structs that modules use: those of backend.h, and hvd_error."""
    structs = {}
    for header in ("hvd.h", "backend.h"):
        for body, name in re.findall(r"typedef struct \w*\s*\{([^}]*)\}\s*(\w+);", text_of(include, header)):
            if header == "hvd.h" and name != "hvd_error":
                continue
            fields = []
            for declaration in body.split(";"):
                function = re.search(r"\(\*(\w+)\)", declaration)
                if function:
                    fields.append(function.group(1))
                    continue
                for part in declaration.split(","):
                    field = re.search(r"(\w+)\s*(\[[^\]]*\])?\s*$", part)
                    if field:
                        fields.append(field.group(1))
            structs[name] = fields
    return structs


def numbers_of(include):
    """Names of enum values, and of macros with a number."""
    names = []
    for header in ("hvd.h", "backend.h"):
        text = text_of(include, header)
        for body in re.findall(r"enum\s*\{([^}]*)\}", text):
            names += re.findall(r"\b(HVD_\w+)\s*=", body)
    return names + ["HVD_BACKEND_ABI_VERSION", "HVD_ABI_VERSION"]


def prototypes_of(include):
    """Function pointers and types of fields, each as one line."""
    lines = {}
    for body, name in re.findall(r"typedef struct \w*\s*\{([^}]*)\}\s*(\w+);", text_of(include, "backend.h")):
        for declaration in body.split(";"):
            declaration = " ".join(declaration.split())
            field = re.search(r"\(\*(\w+)\)", declaration)
            if field:
                lines[f"{name}.{field.group(1)}"] = declaration
    return lines


def measured(include, structs, numbers):
    """What a compiler makes of it."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "hvd/backend.h"', "int main(void) {"]
    for name, fields in structs.items():
        lines.append(f'printf("sizeof {name} %zu\\n", sizeof({name}));')
        for field in fields:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}) * 1000 + sizeof((({name} *)0)->{field}));')
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in numbers]
    lines += ["return 0;", "}"]
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text("\n".join(lines))
        program = Path(directory) / "probe"
        subprocess.run([COMPILER, "-std=c99", *(f"-I{directory}" for directory in include), source, "-o", program], check=True)
        output = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(line.rsplit(" ", 1) for line in output.splitlines())


class BackendAbi(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.structs, cls.numbers = structs_of(FROZEN), numbers_of(FROZEN)
        cls.then = measured(FROZEN, cls.structs, cls.numbers)
        cls.now = measured(TODAY, cls.structs, cls.numbers)

    def test_the_frozen_header_was_read(self):
        self.assertIn("struct_size", self.structs["hvd_backend_table"])
        self.assertIn("submit", self.structs["hvd_backend_table"])
        self.assertIn("done_context", self.structs["hvd_backend_op"])
        self.assertGreater(len(self.structs), 8)

    def test_fields_and_numbers_stay(self):
        """A field's number is its offset * 1000 + its size."""
        changed = {key: (value, self.now.get(key)) for key, value in self.then.items()
                   if not key.startswith("sizeof ") and value != self.now.get(key)}
        self.assertEqual({}, changed)

    def test_structs_grow_at_their_end_alone(self):
        for name, fields in self.structs.items():
            then, now = int(self.then[f"sizeof {name}"]), int(self.now[f"sizeof {name}"])
            if fields[0] == "struct_size" and name != "hvd_backend_description":  # lies within the table
                self.assertGreaterEqual(now, then, name)
            else:
                self.assertEqual(then, now, f"{name} has no struct_size of its own to grow by")

    def test_functions_keep_their_types(self):
        then, now = prototypes_of(FROZEN), prototypes_of(TODAY)
        self.assertIn("hvd_backend_table.connect", then)
        self.assertEqual({}, {key: (value, now.get(key)) for key, value in then.items() if value != now.get(key)})


if __name__ == "__main__":
    unittest.main(verbosity=2)
