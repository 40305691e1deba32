"""Bindings whose languages read no header, for make.py: constants that are made from api.json, and Python's
and Node's structs, callbacks and functions, which are compared with it.

Each check gives sentences that say what is wrong. `api` is the document of make.py."""
import ctypes
import importlib.util
import re
import sys
import types

MADE = "scripts/api/make.py makes this file, which is not edited."
WIDTHS = {
    "char": ctypes.c_char, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t, "double": ctypes.c_double
}


def constants(api):
    """[(name without HVD_, value)] of what a program that uses the library needs."""
    mine = [value for enum in api["enums"] if enum["header"] != "backend.h" for value in enum["values"]]
    mine += [macro for macro in api["macros"] if "value" in macro and macro["header"] != "backend.h"]
    return [(entry["name"][len("HVD_"):], entry["value"]) for entry in mine]


def python_constants(api):
    lines = "".join(f"{name} = {value}\n" for name, value in constants(api))
    return f'"""Numbers of the headers, without HVD_. {MADE}"""\n\n{lines}'


def node_constants(api):
    lines = "".join(f"export const {name} = {value};\n" for name, value in constants(api))
    return f"// Numbers of the headers, without HVD_. {MADE}\n{lines}"


class Types:
    """C types by what they are made of."""

    def __init__(self, api):
        self.aliases = {entry["name"]: entry.get("is") for entry in api["types"]}
        self.opaque = {entry["name"] for entry in api["types"] if entry.get("opaque")}
        self.structs = {entry["name"]: entry for entry in api["structs"]}
        self.callbacks = {entry["name"]: entry for entry in api["callbacks"]}

    def plain(self, of):
        """Without const and aliases: "int32_t", "hvd_tensor *", "char **"."""
        tokens = [token for token in re.findall(r"\w+|\*", of) if token not in ("const", "struct")]
        base = self.aliases.get(tokens[0]) or tokens[0]
        stars = "".join(tokens[1:])
        return f"{base} {stars}" if stars else base


# ---- Python ----


class AnyLibrary:
    """Has a function of any name."""

    def __getattr__(self, name):
        return types.SimpleNamespace()


def load_tables(path):
    """The module of ctypes tables, without the library."""
    name = "hvd_tables"
    package = types.ModuleType(name)
    package.__path__ = [str(path.parent)]
    library = types.ModuleType(name + "._library")
    library.LibraryError = Exception
    library.load = lambda: (AnyLibrary(), "")
    sys.modules.update({name: package, name + "._library": library})
    spec = importlib.util.spec_from_file_location(name + "._abi", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Python:
    """What _abi.py says."""

    def __init__(self, api, tables):
        self.api, self.types, self.tables = api, Types(api), tables
        layouts = {tuple(self.member(f) for f in s["fields"]): s["name"] for s in api["structs"]}
        self.structs, self.wrong = {}, []
        for name, kind in vars(tables).items():
            if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and "_fields_" in vars(kind):
                found = layouts.get(tuple((f[0], getattr(kind, f[0]).offset, getattr(kind, f[0]).size)
                                          for f in kind._fields_))
                if found is None:
                    self.wrong.append(f"Python's {name} is laid out as no struct of the headers")
                else:
                    self.structs[found] = kind

    @staticmethod
    def member(field):
        return field["name"], field["offset"], field["size"]

    def fits(self, kind, of, array=None):
        """Whether a ctypes type can stand for a C type."""
        plain = self.types.plain(of)
        if plain in self.types.callbacks:
            return self.same_function(kind, self.types.callbacks[plain])
        if "*" not in plain:
            expected = ctypes.c_int64 if plain not in WIDTHS else WIDTHS[plain]
            if plain in self.types.structs:
                expected = self.structs.get(plain)
            return kind is (expected * array if array else expected)
        base, stars = plain.split()
        if stars == "**":  # a pointer that is given out, or borrowed text
            inner = kind._type_ if hasattr(kind, "contents") else None
            return inner is ctypes.c_void_p or (inner is ctypes.c_char_p and base == "char")
        if base in self.types.structs and hasattr(kind, "contents"):
            return kind._type_ is self.structs.get(base)
        if base == "char":
            return kind is ctypes.c_char_p
        if base in WIDTHS:
            return kind is ctypes.POINTER(WIDTHS[base])
        return kind is ctypes.c_void_p or (base == "void" and kind is ctypes.c_char_p)

    def same_function(self, kind, callback):
        if not (isinstance(kind, type) and issubclass(kind, ctypes._CFuncPtr)):
            return False
        result = callback["result"]
        mine = kind._restype_ is None if result == "void" else self.fits(kind._restype_, result)
        parameters = callback["parameters"]
        return mine and len(kind._argtypes_) == len(parameters) and all(
            self.fits(k, p["type"]) for k, p in zip(kind._argtypes_, parameters))

    def check(self):
        wrong = list(self.wrong)
        for name, kind in self.structs.items():
            for field, (_, member) in zip(self.types.structs[name]["fields"],
                                          (f[:2] for f in kind._fields_)):
                if not self.fits(member, field["type"], field.get("array")):
                    wrong.append(f"Python's {kind.__name__}.{field['name']} is no {field['type']}")
        functions = {function["name"]: function for function in self.api["functions"]}
        for name, (result, arguments) in self.tables._PROTOTYPES.items():
            if name not in functions:
                wrong.append(f"Python has {name}, which no header declares")
                continue
            of, parameters = functions[name]["result"], functions[name]["parameters"]
            if result is None:  # a status, and the error last
                fits = of == "hvd_status" and parameters[-1]["type"] == "hvd_error *"
                parameters = parameters[:-1]
            elif result == "void":
                fits = of == "void"
            else:
                fits = self.fits(result, of)
            if not fits:
                wrong.append(f"Python's {name} gives another type than {of}")
            if len(parameters) != len(arguments):
                wrong.append(f"Python's {name} has {len(arguments)} parameters: expected {len(parameters)}")
            for kind, parameter in zip(arguments, parameters):
                if not self.fits(kind, parameter["type"]):
                    wrong.append(f"Python's {name} takes a {getattr(kind, '__name__', kind)} as "
                                 f"{parameter['name']}: expected {parameter['type']}")
        return wrong


# ---- Node ----

FIELD = r'(\w+):\s*(?:"([^"]+)"|koffi\.array\("(\w+)", (\w+)\))'


def node_kind(of, types):
    """koffi's words in C's: "_Out_ int32 *" is "int32_t *"."""
    of = re.sub(r"\b_\w+_\b", "", of)
    return types.plain(re.sub(r"\b(u?int(?:8|16|32|64))\b", r"\1_t", of))


def node_fields(text, types):
    return [(name, node_kind(kind or element, types), int(count) if count else None)
            for name, kind, element, count in re.findall(FIELD, text)]


class Node:
    """What abi.js says. Structs may be those of an older header: they have struct_size."""

    def __init__(self, api, text):
        self.api, self.types = api, Types(api)
        text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
        for name, value in constants(api):
            text = re.sub(rf", {name}\)", f", {value})", text)
        self.text = text

    def structs(self):
        place = re.search(r"const place = \{(.*?)\};", self.text, re.S).group(1)
        found = re.findall(r'struct\("(hvd_\w+)",\s*(\{.*?\}|place)\)', self.text, re.S)
        return [(name, node_fields(body.replace("...place", place) if body != "place" else place, self.types))
                for name, body in found]

    def functions(self):
        """(name, result, parameters), all of them with a text of C."""
        joined = re.sub(r'"\s*\+\s*"', "", self.text)
        for name, parameters in re.findall(r'\["(\w+)", "([^"]*)"\]', joined):
            yield f"hvd_{name}", "int32", parameters + ", hvd_error *error"
        for result, name, parameters in re.findall(r'\w+: "(\w+) (hvd_\w+)\((.*?)\)"', joined):
            yield name, result, parameters

    def callbacks(self):
        return re.findall(r'koffi\.proto\("(\w+) (hvd_\w+)\((.*?)\)"\)', self.text)

    def fits(self, said, of):
        if of in self.types.callbacks:
            return said in (of + " *", "void *")
        return said == of or (said == "void *" and of.endswith("*"))

    def compare(self, name, result, parameters, declared):
        wrong = []
        if node_kind(result, self.types) != self.types.plain(declared["result"]):
            wrong.append(f"Node's {name} gives {result}: expected {declared['result']}")
        said = [re.sub(r"\w+$", "", p.strip()).strip() for p in parameters.split(",")]
        if len(said) != len(declared["parameters"]):
            expected = len(declared["parameters"])
            return wrong + [f"Node's {name} has {len(said)} parameters: expected {expected}"]
        for kind, parameter in zip(said, declared["parameters"]):
            of = parameter["type"]
            if not self.fits(node_kind(kind, self.types), self.types.plain(of)):
                wrong.append(f"Node's {name} takes {kind} as {parameter['name']}: expected {of}")
        return wrong

    def check(self):
        wrong = []
        structs, functions = self.structs(), list(self.functions())
        if len(structs) < 5 or len(functions) < 20 or not self.callbacks():
            wrong.append("Node's tables in abi.js can't be read")
        for name, fields in structs:
            declared = self.types.structs.get(name, {"fields": []})["fields"][1:]
            for index, (field, kind, count) in enumerate(fields):
                there = declared[index] if index < len(declared) else {"name": "nothing", "type": "void"}
                if field != there["name"] or kind != self.types.plain(there["type"]) or \
                        count != there.get("array"):
                    wrong.append(f"Node's {name}.{field} stands where the header has "
                                 f"{there['type']} {there['name']}")
                    break
        known = {entry["name"]: entry for entry in self.api["functions"] + self.api["callbacks"]}
        for name, result, parameters in [*functions, *((n, r, p) for r, n, p in self.callbacks())]:
            if name in known:
                wrong += self.compare(name, result, parameters, known[name])
            else:
                wrong.append(f"Node has {name}, which no header declares")
        return wrong


def differences(api, root):
    """What Python and Node say otherwise than the headers. A package of sources may come without them."""
    wrong = []
    python, node = root / "bindings/python/hvd/_abi.py", root / "bindings/node/lib/abi.js"
    if python.exists():
        wrong += Python(api, load_tables(python)).check()
    if node.exists():
        wrong += Node(api, node.read_text()).check()
    return wrong
