"""What is written of the C API outside its headers: api.json and what is made of it, the bindings' tables and
the functions that they use: api_test.py"""
import ctypes
import importlib.util
import json
import re
import subprocess
import sys
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAKE = ROOT / "scripts" / "api" / "make.py"
API = json.loads((ROOT / "scripts" / "api" / "api.json").read_text())
FUNCTIONS = {function["name"] for function in API["functions"]}
BLOCKING = {
    "hvd_" + name for name in
    ("allreduce broadcast allgather reducescatter alltoall barrier broadcast_variables grouped_allreduce grouped_allgather "
     "join send receive reduce gather scatter").split()
}
PLACE = {"hvd_" + name for name in "rank size local_rank local_size cross_rank cross_size generation".split()}
# hvdrun --join is the agent for workers in any language.
AGENT = {name for name in FUNCTIONS if name.startswith("hvd_agent_")}
# What a binding leaves out, and why.
UNUSED = {
    # It submits requests, which is how it has time-outs, sets and cancelling; the rest is in
    # hvd_get_membership and hvd_state_get_info.
    "go": AGENT | BLOCKING | PLACE | {
        "hvd_init", "hvd_connect_begin", "hvd_run", "hvd_state_revision", "hvd_op_get_error",
        "hvd_submit_and_wait", "hvd_op_abandon", "hvd_broadcast_object", "hvd_allgather_object",
        "hvd_gather_object", "hvd_dtype_size", "hvd_dtype_name", "hvd_options_set_int",
        "hvd_options_set_bool", "hvd_options_set_duration", "hvd_options_get", "hvd_get_event_fd",
        "hvd_next_event", "hvd_state_on_reset", "hvd_get_leave_fd"
    } | {"hvd_state_lend"},  # a goroutine calls Leave; C may keep no memory of Go's after a call
    "rust": AGENT | BLOCKING | PLACE | {
        "hvd_init",
        "hvd_connect_begin",
        "hvd_run",
        "hvd_op_get_error",
        "hvd_submit_and_wait",
        "hvd_dtype_size",
        "hvd_dtype_name",
        "hvd_state_get_info",
        "hvd_state_revision",
        # A state's fields are those that its value names, and its loop runs what is
        # to be reset.
        "hvd_state_on_reset",
        "hvd_state_remove",
        # What an object lends would have to outlive its own save: what is large is a field.
        "hvd_state_lend"
    },
    # It has one form of an operation, requests, and a loop of its own.
    "python": AGENT | BLOCKING | {
        "hvd_init", "hvd_connect", "hvd_run", "hvd_broadcast_object", "hvd_allgather_object",
        "hvd_gather_object", "hvd_dtype_name", "hvd_get_leave_fd"
    },  # the interpreter's own handler writes to a descriptor of Python's
}
SOURCES = {"go": ("bindings/go", ("*.go", "bridge.c"), r"\b(?:C\.)?(hvd_\w+)\("),
           "rust": ("bindings/rust/hvd/src", ("*.rs",), r"sys::(hvd_\w+)"),
           "python": ("bindings/python", ("*.py", "*.c", "*.cc", "*.cpp"), r"\b(hvd_\w+)\b")}


def used(binding):
    folder, patterns, expression = SOURCES[binding]
    names = set()
    for pattern in patterns:
        for path in (ROOT / folder).rglob(pattern):
            if not {"tests", "examples", "build", "target"} & set(path.relative_to(ROOT / folder).parts):
                names |= set(re.findall(expression, path.read_text()))
    return names & FUNCTIONS


class Api(unittest.TestCase):
    maxDiff = None

    def test_everything_made_is_what_the_headers_say(self):
        result = subprocess.run((sys.executable, "-B", str(MAKE), "--check"), stdout=subprocess.PIPE,
                                text=True)
        self.assertEqual((0, ""), (result.returncode, result.stdout))

    def test_a_change_of_a_header_is_noticed(self):
        spec = importlib.util.spec_from_file_location("make", MAKE)
        make = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(make)
        struct = make.Reader().struct("s", "size_t struct_size; int32_t a, b; char c[3]; double d", "x.h")
        self.assertEqual((32, [0, 8, 12, 16, 24]),
                         (struct["size"], [field["offset"] for field in struct["fields"]]))
        for strange in ("typedef union u { int32_t a; } u;", "hvd_status hvd_f(int32_t (*a)(void))[2];",
                        "int32_t a = 1;"):
            with self.assertRaises(make.Unreadable):
                for piece in make.Reader.pieces(strange):
                    make.Reader().declaration(piece, "x.h", None)

    def test_a_function_that_the_export_map_lacks_is_noticed(self):
        spec = importlib.util.spec_from_file_location("make", MAKE)
        make = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(make)
        functions = [{"name": name} for name in FUNCTIONS]
        self.assertEqual([], make.unlisted({"functions": functions}))
        self.assertEqual(["src/api/hvd.map does not export hvd_new"],
                         make.unlisted({"functions": functions + [{"name": "hvd_new"}]}))
        self.assertEqual(["src/api/hvd.map exports hvd_rank, which no header declares"],
                         make.unlisted({"functions": [f for f in functions if f["name"] != "hvd_rank"]}))

    def test_each_constant_is_known_to_go(self):
        """Their values are the header's: cgo asks the compiler."""
        text = "\n".join(path.read_text() for path in (ROOT / "bindings/go").glob("*.go"))
        known = set(re.findall(r"C\.(HVD_\w+)", text))
        # A Go program meets these as nil, as a default, or in a callback of its own.
        without = {"HVD_OK", "HVD_LOG_DEFAULT", "HVD_PHASE_NEW"}
        missing = [value["name"] for enum in API["enums"] for value in enum["values"]
                   if value["name"] not in known | without and "backend.h" != enum["header"]
                   and not re.match("HVD_(DTYPE_(FLOAT8|COMPLEX)|COLLECTIVE_|DRIVER_FORMAT_)", value["name"])]
        self.assertEqual([], missing)

    def test_each_function_is_used_by_each_binding_or_left_out_on_purpose(self):
        for binding, left_out in UNUSED.items():
            with self.subTest(binding):
                self.assertEqual(sorted(left_out & FUNCTIONS), sorted(left_out), "no such function")
                missing = FUNCTIONS - used(binding) - left_out
                self.assertEqual([], sorted(missing), f"{binding} does not use them")

    def test_pythons_tables_are_the_headers(self):
        """Where the package has tables for ctypes: functions with their parameters, and structs by their
        layout."""
        path = ROOT / "bindings/python/hvd/_abi.py"
        if not path.exists():
            self.skipTest("the package is compiled against the headers")
        tables = self.loaded(path)
        functions = {function["name"]: function for function in API["functions"]}
        for name, (result, arguments) in tables._PROTOTYPES.items():
            self.assertIn(name, functions)
            expected = len(functions[name]["parameters"]) - (1 if result is None else 0)
            self.assertEqual(expected, len(arguments), name)
        layouts = {tuple((f["name"], f["offset"], f["size"]) for f in s["fields"]): s for s in API["structs"]}
        checked = 0
        for name, kind in vars(tables).items():
            if not (isinstance(kind, type) and issubclass(kind, ctypes.Structure)) or not hasattr(
                    kind, "_fields_"):
                continue
            layout = tuple(
                (f[0], getattr(kind, f[0]).offset, getattr(kind, f[0]).size) for f in kind._fields_)
            self.assertIn(layout, layouts, name)
            self.assertEqual(layouts[layout]["size"], ctypes.sizeof(kind), name)
            checked += 1
        self.assertGreater(checked, 10)

    @staticmethod
    def loaded(path):
        """The module, with a library that has every function there is."""
        package = types.ModuleType("hvd_tables")
        package.__path__ = [str(path.parent)]
        sys.modules["hvd_tables"] = package
        library = types.ModuleType("hvd_tables._library")
        library.LibraryError = Exception
        library.load = lambda: (types.SimpleNamespace(**{name: types.SimpleNamespace()
                                                         for name in FUNCTIONS}), "")
        sys.modules["hvd_tables._library"] = library
        spec = importlib.util.spec_from_file_location("hvd_tables._abi", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


if __name__ == "__main__":
    unittest.main(verbosity=2)
