#!/usr/bin/env python3
"""Reads the public headers into scripts/api/api.json, and makes from that what would else be written a second
time: make.py [--check]: says what is out of date, and writes nothing. The build runs it with --check.

The headers keep to a small part of C, and this reads no more: object-like macros, integer typedefs,
enumerations whose values are written out, opaque and plain structs, function pointers and functions. What it
does not understand is an error. Layouts are those of 64-bit Linux; tests/abi/layout.c, made here too, lets
the compiler check them."""
import json
import re
import sys
from pathlib import Path

import bindings

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ("hvd.h", "connect.h", "direct.h", "sampler.h", "shards.h", "driver.h", "backend.h")
SCALARS = {
    "char": 1, "int8_t": 1, "uint8_t": 1, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
    "size_t": 8, "double": 8
}


class Unreadable(Exception):
    pass


def stripped(text):
    """Without comments, and without what only a compiler of C++ sees."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"#ifdef __cplusplus.*?#endif", " ", text, flags=re.S)


class Reader:
    def __init__(self):
        self.macros, self.types, self.enums, self.structs, self.callbacks, self.functions = [], [], [], [], [], []
        self.values = {}

    def number(self, text):
        text = re.sub(r"\(\s*\w+_t\s*\)|\(\s*hvd_\w+\s*\)", "", text.strip())
        text = re.sub(r"\bHVD_\w+\b", lambda m: str(self.values[m.group(0)]), text)
        text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
        if not re.fullmatch(r"[\s0-9a-fA-Fx()<|*+-]+", text):
            raise Unreadable(f"no number: {text!r}")
        return int(eval(text, {"__builtins__": {}}))  # pylint: disable=eval-used: digits and operators alone

    def macro(self, name, value, header):
        if not value or name == "HVD_API" or name.endswith("_H"):
            return
        if value.startswith('"'):
            self.macros.append({"name": name, "header": header, "text": value.strip('"')})
        elif value.startswith("{"):
            self.macros.append({"name": name, "header": header, "initializer": value})
        else:
            self.values[name] = self.number(value)
            self.macros.append({"name": name, "header": header, "value": self.values[name]})

    def read(self, header):
        text = stripped((ROOT / "include" / "hvd" / header).read_text())
        for name, value in re.findall(r"^#define[ \t]+(\w+)[ \t]*(.*)$", text, flags=re.M):
            self.macro(name, value.strip(), header)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        last = None
        for piece in self.pieces(text):
            last = self.declaration(piece, header, last)

    @staticmethod
    def pieces(text):
        """Declarations: up to a semicolon outside of braces."""
        depth, start = 0, 0
        for at, character in enumerate(text):
            depth += {"{": 1, "}": -1}.get(character, 0)
            if character == ";" and depth == 0:
                yield " ".join(text[start:at].split())
                start = at + 1
        if text[start:].strip():
            raise Unreadable(f"left over: {text[start:].strip()[:80]!r}")

    def declaration(self, piece, header, last):
        match = re.fullmatch(r"enum \w* ?\{(.*)\}", piece)
        if match:
            values = []
            for entry in filter(None, (e.strip() for e in match.group(1).split(","))):
                name, value = (part.strip() for part in entry.split("="))
                self.values[name] = self.number(value)
                values.append({"name": name, "value": self.values[name]})
            self.enums.append({"type": last, "header": header, "values": values})
            return None
        match = re.fullmatch(r"typedef struct (\w+) \{(.*)\} (\w+)", piece)
        if match:
            self.structs.append(self.struct(match.group(3), match.group(2), header))
            return None
        match = re.fullmatch(r"typedef struct (\w+) (\w+)", piece)
        if match:
            if match.group(2) not in [t["name"] for t in self.types]:
                self.types.append({"name": match.group(2), "header": header, "opaque": True})
            return None
        match = re.fullmatch(r"typedef (.+?)\(\*(\w+)\)\((.*)\)", piece)
        if match:
            self.callbacks.append({"name": match.group(2), "header": header, "result": match.group(1).strip(),
                                   "parameters": self.parameters(match.group(3))})
            return None
        match = re.fullmatch(r"typedef (\w+) (\w+)", piece)
        if match:
            self.types.append({"name": match.group(2), "header": header, "is": match.group(1)})
            return match.group(2)
        match = re.fullmatch(r"(?:HVD_API|HVD_BACKEND_API|extern)?\s*(.+?)\b(hvd_\w+)\((.*)\)", piece)
        if match and "(*" not in piece:
            function = {"name": match.group(2), "header": header, "result": match.group(1).strip(),
                        "parameters": self.parameters(match.group(3))}
            if header != "backend.h":  # there it is the module that has them
                self.functions.append(function)
            return None
        raise Unreadable(f"{header}: {piece[:120]!r}")

    @staticmethod
    def split(text):
        """At commas outside of parentheses."""
        parts, depth = [""], 0
        for character in text:
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += character
        return [part.strip() for part in parts if part.strip()]

    @staticmethod
    def variable(text):
        match = re.fullmatch(r"(.+?)\(\*(\w+)\)\((.*)\)", text)
        if match:
            return {"name": match.group(2), "type": f"{match.group(1).strip()} (*)({match.group(3)})"}
        match = re.fullmatch(r"(.*?[\s*])(\w+)((?:\[\w+\])?)", text)
        if not match:
            raise Unreadable(f"no variable: {text!r}")
        return {
            "name": match.group(2), "type": re.sub(r"\s*\*", " *",
                                                   match.group(1).strip()).replace("* *", "**"),
            **({"array": match.group(3)[1:-1]} if match.group(3) else {})
        }

    def parameters(self, text):
        return [] if text.strip() == "void" else [self.variable(part) for part in self.split(text)]

    def layout(self, of, array=None):
        """(size, alignment) of a type."""
        if "*" in of:
            size, align = 8, 8
        else:
            name = of.replace("const ", "").strip()
            size = align = None
            while name not in SCALARS:
                known = {t["name"]: t.get("is") for t in self.types}
                inner = [s for s in self.structs if s["name"] == name]
                if inner:
                    size, align = inner[0]["size"], inner[0]["align"]
                    break
                if name in [c["name"] for c in self.callbacks]:
                    size, align = 8, 8
                    break
                if known.get(name) is None:
                    raise Unreadable(f"no type: {name!r}")
                name = known[name]
            if size is None:
                size = align = SCALARS[name]
        count = 1 if array is None else self.number(array)
        return size * count, align

    def struct(self, name, body, header):
        fields, at, widest = [], 0, 1
        for entry in filter(None, (e.strip() for e in body.split(";"))):
            if "(*" in entry:
                declared = [self.variable(entry)]
            else:
                first, *others = self.split(entry)
                base = self.variable(first)
                declared = [base] + [{**base, "name": other.strip(" *")} for other in others]
            for field in declared:
                size, align = self.layout(field["type"], field.get("array"))
                at = (at + align - 1) // align * align
                if "array" in field:
                    field["array"] = self.number(field["array"])
                fields.append({**field, "offset": at, "size": size})
                at, widest = at + size, max(widest, align)
        return {"name": name, "header": header, "size": (at + widest - 1) // widest * widest, "align": widest,
                "fields": fields}

    def document(self):
        return {
            "about": "The public headers of libhvd as data, made by scripts/api/make.py. Layouts: 64-bit Linux.",
            "version": next(m["text"] for m in self.macros if m["name"] == "HVD_VERSION_STRING"),
            "macros": self.macros, "types": self.types, "enums": self.enums, "structs": self.structs,
            "callbacks": self.callbacks, "functions": self.functions
        }


def read():
    reader = Reader()
    for header in HEADERS:
        reader.read(header)
    return reader.document()


def as_json(api):
    """One line an entry, so that a change of one is one line."""
    lines = []
    for key, value in api.items():
        if isinstance(value, list):
            entries = ",\n".join("  " + json.dumps(entry) for entry in value)
            lines.append(f'"{key}": [\n{entries}\n]')
        else:
            lines.append(f'"{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def layout_c(api):
    out = [
        """/* Layout of the public structs on 64-bit Linux: made by scripts/api/make.py from api.json, and a
 * test in that it compiles. A struct with struct_size may get fields at its end; nothing else here changes
 * within an ABI version. */
#include <stddef.h>

#include "hvd/backend.h"
#include "hvd/connect.h"
#include "hvd/direct.h"
#include "hvd/driver.h"
#include "hvd/sampler.h"
#include "hvd/shards.h"

/* A negative array size is an error in C99. */
#define HOLDS(name, condition) typedef char name[(condition) ? 1 : -1]
#define SIZE(type, bytes) HOLDS(type##_size, sizeof(type) == (bytes))
#define AT(type, field, bytes) HOLDS(type##_##field##_at, offsetof(type, field) == (bytes))
#define IS(name, number) HOLDS(name##_is, (name) == (number))

HOLDS(pointers_are_64_bits, sizeof(void *) == 8 && sizeof(size_t) == 8);
"""
    ]
    for struct in api["structs"]:
        out.append(f"SIZE({struct['name']}, {struct['size']});")
        out += [f"AT({struct['name']}, {field['name']}, {field['offset']});" for field in struct["fields"]]
        out.append("")
    for enum in api["enums"]:
        out += [f"IS({value['name']}, {value['value']});" for value in enum["values"]]
        out.append("")
    out += [
        f"IS({macro['name']}, {macro['value']}{'u' if macro['value'] > 2**31 else ''});"
        for macro in api["macros"] if "value" in macro
    ]
    return "\n".join(out) + "\n"


RUST_SCALARS = {
    "void": "c_void", "char": "c_char", "int8_t": "i8", "uint8_t": "u8", "int32_t": "i32", "uint32_t": "u32",
    "int64_t": "i64", "uint64_t": "u64", "size_t": "usize", "double": "f64"
}


def rust_type(of, known):
    """Of a C type; `const char *const *` is a pointer to a pointer that is not written through."""
    tokens = re.findall(r"\w+|\*", of)
    base = next(t for t in tokens if t not in ("const", "struct"))
    result = RUST_SCALARS.get(base, base)
    if base not in RUST_SCALARS and base not in known:
        raise Unreadable(f"no type for Rust: {of!r}")
    constant = tokens[0] == "const"
    for token in tokens[tokens.index(base) + 1:]:
        if token == "const":
            constant = True
        else:
            result = f"*{'const' if constant else 'mut'} {result}"
            constant = False
    return result


def rust_field(name):
    return f"r#{name}" if name in ("type", "move", "use", "in", "loop", "match", "ref") else name


def rust(api):
    """hvd-sys: what the headers but backend.h declare."""
    mine = lambda entries: [e for e in entries if e["header"] != "backend.h"]  # noqa: E731
    known = {e["name"] for kind in ("types", "structs", "callbacks") for e in mine(api[kind])}
    out = ["// Made from the headers by scripts/api/make.py: do not edit.",
           "use std::os::raw::{c_char, c_void};", ""]
    for macro in mine(api["macros"]):
        if "text" in macro:
            text = macro["text"]
            out.append(f'pub const {macro["name"]}: &[u8; {len(text) + 1}] = b"{text}\\0";')
        elif "value" in macro:
            kind = {
                "HVD_EVENT_ALL": "hvd_event_kind", "HVD_DEFAULT_TIMEOUT": "i64", "HVD_MILLISECOND": "i64",
                "HVD_SECOND": "i64", "HVD_MAX_DIMS": "usize", "HVD_NO_COPIES": "i32",
                "HVD_SAMPLER_SAVED_BYTES": "usize"
            }
            out.append(f'pub const {macro["name"]}: {kind.get(macro["name"], "u32")} = {macro["value"]};')
    out.append("")
    for entry in mine(api["types"]):
        if entry.get("opaque"):
            out += ["#[repr(C)]", f'pub struct {entry["name"]} {{', "    _private: [u8; 0],", "}"]
        else:
            out.append(f'pub type {entry["name"]} = {RUST_SCALARS[entry["is"]]};')
    for enum in mine(api["enums"]):
        out.append("")
        out += [f'pub const {v["name"]}: {enum["type"] or "i32"} = {v["value"]};' for v in enum["values"]]
    out.append("")
    for callback in mine(api["callbacks"]):
        arguments = "".join(f"\n        {rust_field(p['name'])}: {rust_type(p['type'], known)},"
                            for p in callback["parameters"])
        result = "" if callback["result"] == "void" else f" -> {rust_type(callback['result'], known)}"
        out.append(
            f"pub type {callback['name']} =\n    Option<unsafe extern \"C\" fn({arguments}\n    ){result}>;")
    for struct in mine(api["structs"]):
        out += ["", "#[repr(C)]", "#[derive(Clone, Copy, Debug)]", f"pub struct {struct['name']} {{"]
        for field in struct["fields"]:
            kind = rust_type(field["type"], known)
            if "array" in field:
                kind = f"[{kind}; {field['array']}]"
            out.append(f"    pub {rust_field(field['name'])}: {kind},")
        out.append("}")
    out += ["", 'extern "C" {']
    for function in mine(api["functions"]):
        arguments = "".join(f"\n        {rust_field(p['name'])}: {rust_type(p['type'], known)},"
                            for p in function["parameters"])
        result = "" if function["result"] == "void" else f" -> {rust_type(function['result'], known)}"
        out.append(f"    pub fn {function['name']}({arguments}\n    ){result};")
    out += [
        "}", "", "#[cfg(test)]", "mod layout {", "    use super::*;",
        "    use std::mem::{offset_of, size_of};", "", "    #[test]",
        "    fn structs_are_as_in_the_headers() {"
    ]
    for struct in mine(api["structs"]):
        out.append(f"        assert_eq!(size_of::<{struct['name']}>(), {struct['size']});")
        out += [f"        assert_eq!(offset_of!({struct['name']}, {rust_field(f['name'])}), {f['offset']});"
                for f in struct["fields"]]
    out += ["    }", "}"]
    return "\n".join(out) + "\n"


def made():
    api = read()
    return {
        ROOT / "scripts/api/api.json": as_json(api), ROOT / "tests/abi/layout.c": layout_c(api),
        ROOT / "bindings/rust/hvd-sys/src/bindings.rs": rust(api),
        ROOT / "bindings/python/hvd/_constants.py": bindings.python_constants(api),
        ROOT / "bindings/node/lib/constants.js": bindings.node_constants(api)
    }


def unlisted(api):
    """What the export map of the library says otherwise than the headers."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / "src/api/hvd.map").read_text(), flags=re.S)
    exported = re.findall(r"\b(hvd_\w+);", text)
    declared = {function["name"] for function in api["functions"]}
    return ([f"src/api/hvd.map does not export {name}" for name in sorted(declared - set(exported))] +
            [f"src/api/hvd.map exports {name}, which no header declares"
             for name in sorted(set(exported) - declared)] +
            [f"src/api/hvd.map exports {name} twice"
             for name in sorted(set(exported)) if exported.count(name) > 1])


def main():
    stale = [path for path, text in made().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what the headers say: run scripts/api/make.py")
        wrong = unlisted(read())
        wrong += [] if stale else bindings.differences(read(), ROOT)
        print("".join(line + "\n" for line in wrong), end="")
        return 1 if stale or wrong else 0
    for path, text in made().items():
        if path in stale:
            path.write_text(text)
            print(f"made {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
