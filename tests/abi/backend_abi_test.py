"""hvd/backend.h beside the recorded ones of its ABI: backend_abi_test.py C-COMPILER
Modules are built against a header and meet later libraries. Structs with struct_size may get fields at their
end, the others stay as they are; no value of an enum or a number of the ABI changes. Says what has."""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from headers import INCLUDE, recorded_versions, strip_comments

COMPILER = sys.argv.pop(1)
RECORDED = recorded_versions("HVD_BACKEND_ABI_VERSION", "backend.h")
TODAY = INCLUDE.parent


def text_of(include, header):
    text = strip_comments((include / "hvd" / header).read_text())
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
            lines.append(
                f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}) * 1000 + sizeof((({name} *)0)->{field}));'
            )
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in numbers]
    lines += ["return 0;", "}"]
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text("\n".join(lines))
        program = Path(directory) / "probe"
        subprocess.run([COMPILER, "-std=c99", f"-I{include}", source, "-o", program], check=True)
        output = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(line.rsplit(" ", 1) for line in output.splitlines())


class Checks:
    maxDiff = None

    recorded: Path

    @classmethod
    def setUpClass(cls):
        cls.structs, cls.numbers = structs_of(cls.recorded), numbers_of(cls.recorded)
        cls.then = measured(cls.recorded, cls.structs, cls.numbers)
        cls.now = measured(TODAY, cls.structs, cls.numbers)

    def test_the_recorded_header_was_read(self):
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
        then, now = prototypes_of(self.recorded), prototypes_of(TODAY)
        self.assertIn("hvd_backend_table.connect", then)
        self.assertEqual({},
                         {key: (value, now.get(key)) for key, value in then.items() if value != now.get(key)})


if not RECORDED:
    sys.exit("nothing of this backend ABI is recorded: run scripts/record-abi.sh")
for version in RECORDED:
    name = f"BackendAbi_{version.name.replace('.', '_')}"
    globals()[name] = type(name, (Checks, unittest.TestCase), {"recorded": version})

if __name__ == "__main__":
    unittest.main(verbosity=2)
