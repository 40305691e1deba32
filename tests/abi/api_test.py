"""What is written of the C API outside its headers: api.json and what is made of it, the bindings' tables and
the functions that they use: api_test.py"""
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
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
DRIVER = {name for name in FUNCTIONS if name.startswith("hvd_driver_")}
SAMPLER = {name for name in FUNCTIONS if name.startswith("hvd_sampler_")} | {"hvd_state_add_sampler"}
# What a binding leaves out, and why.
UNUSED = {
    # It submits requests, which is how it has time-outs, sets and cancelling; the rest is in
    # hvd_get_membership and hvd_state_get_info.
    "go": AGENT | BLOCKING | PLACE | {
        "hvd_init", "hvd_connect_begin", "hvd_run", "hvd_state_revision", "hvd_op_get_error",
        "hvd_submit_and_wait", "hvd_op_abandon", "hvd_broadcast_object", "hvd_allgather_object",
        "hvd_gather_object", "hvd_options_get", "hvd_get_event_fd",
        "hvd_next_event", "hvd_state_on_reset", "hvd_get_leave_fd"
        # A goroutine calls Leave. C may keep no memory of Go's after a call.
    } | {"hvd_state_lend", "hvd_state_lend_until_end"},
    "rust": AGENT | BLOCKING | PLACE | {
        "hvd_init",
        "hvd_connect_begin",
        "hvd_run",
        "hvd_op_get_error",
        "hvd_submit_and_wait",
        # A state's fields are those that its value names, and its loop runs what is
        # to be reset.
        "hvd_state_on_reset",
        "hvd_state_remove",
        # What an object lends would have to outlive its own save: what is large is a field.
        "hvd_state_lend",
        "hvd_state_lend_until_end"
    },
    # It has one form of an operation, requests, and a loop of its own.
    "python": AGENT | BLOCKING | {
        "hvd_init", "hvd_connect", "hvd_run", "hvd_broadcast_object", "hvd_allgather_object",
        "hvd_gather_object", "hvd_dtype_name", "hvd_get_leave_fd"
    },  # the interpreter's own handler writes to a descriptor of Python's
    # Workers alone, with collectives as requests, which promises wait for by descriptor. Rank and size are in
    # hvd_get_membership. Nobody in Node has needed samplers, shards, leaving, halves of commits, timelines.
    "node": AGENT | DRIVER | SAMPLER | BLOCKING | PLACE | {
        "hvd_context_create", "hvd_connect", "hvd_connect_begin", "hvd_run", "hvd_submit_and_wait",
        "hvd_op_wait", "hvd_op_abandon", "hvd_allgather_object", "hvd_gather_object",
        "hvd_status_name", "hvd_dtype_name",  # it has its own, from the headers' numbers
        "hvd_options_set_int", "hvd_options_set_bool", "hvd_options_set_duration", "hvd_options_get",
        "hvd_options_describe", "hvd_process_set_get_ranks", "hvd_get_available_backend",
        "hvd_get_available_backend_count", "hvd_get_backend_choice",
        # Threads of the library would call them, where no JavaScript runs: events come by descriptor.
        "hvd_options_set_log", "hvd_register_listener", "hvd_remove_listener",
        "hvd_leave", "hvd_has_left", "hvd_get_leave_fd",
        "hvd_state_commit_begin", "hvd_state_commit_end", "hvd_timeline_start", "hvd_timeline_stop",
        "hvd_state_add_shard", "hvd_state_add_shard_with_parity", "hvd_shard_range", "hvd_state_on_lost",
        "hvd_state_lend", "hvd_state_lend_until_end",  # C may keep no memory of JavaScript's after a call
    },
}
# What a binding does not name of the enumerators, and why.
WIDE = {"HVD_DTYPE_" + name for name in
        "COMPLEX64 COMPLEX128 FLOAT8_E4M3FN FLOAT8_E5M2 FLOAT8_E4M3FNUZ FLOAT8_E5M2FNUZ".split()}
UNKNOWN = {
    "go": set(),
    # Its broadcast of an object is a broadcast; a phase or level that it does not know is the last one.
    "rust": WIDE | {"HVD_COLLECTIVE_BROADCAST_OBJECT", "HVD_LOG_DEFAULT", "HVD_LOG_ERROR", "HVD_PHASE_FAILED"},
    # NumPy has no such types; a log that is off has no callback.
    "python": WIDE | {"HVD_LOG_OFF"},
    # Workers alone: no driver, no sampler, no memory of devices, no log of its own.
    "node": WIDE | {
        value["name"] for enum in API["enums"] for value in enum["values"]
        if re.match("HVD_(LOG|PHASE|DRIVER_FORMAT|PADDING|MEMORY)_", value["name"]) or
        value["name"] in ["HVD_COLLECTIVE_" + name for name in
                          "BROADCAST_OBJECT GATHER RECEIVE REDUCE SCATTER SEND".split()]
    },
}
CONSTANTS = {
    "go": ("bindings/go", "*.go", [r"C\.HVD_(\w+)"]),
    "rust": ("bindings/rust/hvd/src", "*.rs", [r"\bHVD_(\w+)"]),
    "python": ("bindings/python/hvd", "*.py", [r"\bc\.([A-Z]\w+)", r"_constants import \(?((?:[\w,]|\s)+)"]),
    "node": ("bindings/node/lib", "*.js", [r"\bc\.([A-Z]\w+)"]),
}
SOURCES = {"go": ("bindings/go", ("*.go", "bridge.c"), r"\b(?:C\.)?(hvd_\w+)\("),
           "rust": ("bindings/rust/hvd/src", ("*.rs",), r"sys::(hvd_\w+)"),
           "python": ("bindings/python", ("*.py", "*.c", "*.cc", "*.cpp"), r"\b(hvd_\w+)\b")}

BAD = "tests/api/bad_*.c"
# Functions, by prefix, whose wrong arguments come from the program of tests/api that has what they need.
BAD_ELSEWHERE = {
    "hvd_sampler_": "sampler.c",
    "hvd_state_add_sampler": "sampler.c",
    "hvd_get_available_backend": "backends.c",
    "hvd_get_backend_choice": "backends.c",
    "hvd_op_abandon": "lifetime.c",
}


def without_wrong_arguments(functions):
    """Those that take a pointer and that no such program calls."""
    def calls(text):
        return set(re.findall(r"\b(hvd_\w+)\b", re.sub(r"/\*.*?\*/", " ", text, flags=re.S)))
    bad = set().union(*(calls(path.read_text()) for path in ROOT.glob(BAD)))
    for prefix, file in BAD_ELSEWHERE.items():
        bad |= {name for name in calls((ROOT / "tests/api" / file).read_text()) if name.startswith(prefix)}
    return sorted(function["name"] for function in functions
                  if any("*" in parameter["type"] for parameter in function["parameters"]) and
                  function["name"] not in bad)


def used_by_node():
    """What abi.js declares, and another file calls by its name without the prefix."""
    library = ROOT / "bindings/node/lib"
    table = (library / "abi.js").read_text()
    calls = "\n".join(path.read_text() for path in library.glob("*.js") if path.name != "abi.js")
    declared = [name for name, result, parameters in imported().bindings.Node(API, table).functions()]
    return {name for name in declared if re.search(rf'"{name[4:]}"|\bplain\.{name[4:]}\b', calls)} | \
        set(re.findall(r"library\.func\(\"[\w ]+\*?(hvd_\w+)\(", table))


def used(binding):
    if binding == "node":
        return used_by_node() & FUNCTIONS
    folder, patterns, expression = SOURCES[binding]
    names = set()
    for pattern in patterns:
        for path in (ROOT / folder).rglob(pattern):
            if not {"tests", "examples", "build", "target"} & set(path.relative_to(ROOT / folder).parts):
                names |= set(re.findall(expression, path.read_text()))
    return names & FUNCTIONS


def imported():
    """The module make.py."""
    sys.path.insert(0, str(MAKE.parent))
    spec = importlib.util.spec_from_file_location("make", MAKE)
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    sys.path.pop(0)
    return make


class Api(unittest.TestCase):
    maxDiff = None

    def test_everything_made_is_what_the_headers_say(self):
        result = subprocess.run((sys.executable, "-B", str(MAKE), "--check"), stdout=subprocess.PIPE,
                                text=True)
        self.assertEqual((0, ""), (result.returncode, result.stdout))

    def test_a_change_of_a_header_is_noticed(self):
        make = imported()
        struct = make.Reader().struct("s", "size_t struct_size; int32_t a, b; char c[3]; double d", "x.h")
        self.assertEqual((32, [0, 8, 12, 16, 24]),
                         (struct["size"], [field["offset"] for field in struct["fields"]]))
        for strange in ("typedef union u { int32_t a; } u;", "hvd_status hvd_f(int32_t (*a)(void))[2];",
                        "int32_t a = 1;"):
            with self.assertRaises(make.Unreadable):
                for piece in make.Reader.pieces(strange):
                    make.Reader().declaration(piece, "x.h", None)

    def test_a_function_that_the_export_map_lacks_is_noticed(self):
        make = imported()
        functions = [{"name": name} for name in FUNCTIONS]
        self.assertEqual([], make.unlisted({"functions": functions}))
        self.assertEqual(["src/api/hvd.map does not export hvd_new"],
                         make.unlisted({"functions": functions + [{"name": "hvd_new"}]}))
        self.assertEqual(["src/api/hvd.map exports hvd_rank, which no header declares"],
                         make.unlisted({"functions": [f for f in functions if f["name"] != "hvd_rank"]}))

    def test_each_enumerator_is_known_to_each_binding_or_left_out_on_purpose(self):
        """Their values are the header's: cgo asks the compiler, and make.py makes the others' constants."""
        every = {value["name"] for enum in API["enums"] if enum["header"] != "backend.h"
                 for value in enum["values"]}
        for binding, (folder, pattern, expressions) in CONSTANTS.items():
            with self.subTest(binding):
                text = "\n".join(path.read_text() for path in (ROOT / folder).rglob(pattern)
                                 if path.name not in ("_constants.py", "constants.js"))
                known = {"HVD_" + name for expression in expressions
                         for found in re.findall(expression, text)
                         for name in re.findall(r"\b[A-Z][A-Z0-9_]+\b", found)}
                self.assertEqual(sorted(UNKNOWN[binding] & every), sorted(UNKNOWN[binding]),
                                 "no such enumerator")
                self.assertEqual(sorted(UNKNOWN[binding]), sorted(every - known))

    def test_each_function_is_used_by_each_binding_or_left_out_on_purpose(self):
        for binding, left_out in UNUSED.items():
            with self.subTest(binding):
                self.assertEqual(sorted(left_out & FUNCTIONS), sorted(left_out), "no such function")
                missing = FUNCTIONS - used(binding) - left_out
                self.assertEqual([], sorted(missing), f"{binding} does not use them")
                if binding != "python":  # whose table and comments name functions that it does not call
                    self.assertEqual([], sorted(left_out & used(binding)), f"{binding} uses them")

    def test_each_function_gets_wrong_arguments(self):
        self.assertEqual([], without_wrong_arguments(API["functions"]))
        new = {"name": "hvd_new", "parameters": [{"name": "error", "type": "hvd_error *"}]}
        self.assertEqual(["hvd_new"], without_wrong_arguments(API["functions"] + [new]))
        for prefix, file in BAD_ELSEWHERE.items():
            self.assertRegex((ROOT / "tests/api" / file).read_text(), rf"{prefix}\w*\([^;]*HVD_INVALID")
            self.assertTrue([name for name in FUNCTIONS if name.startswith(prefix)], f"no {prefix}...")

    def noticed(self, file, change, by):
        """Sentences about the binding after a change of its file's text."""
        text = (ROOT / file).read_text()
        old, new = change
        self.assertIn(old, text)
        made = imported()
        if by == "node":
            return made.bindings.Node(API, text.replace(old, new, 1)).check()
        with tempfile.TemporaryDirectory() as folder:
            for name in ("_constants.py", "errors.py"):
                shutil.copy(ROOT / "bindings/python/hvd" / name, folder)
            changed = Path(folder) / "_abi.py"
            changed.write_text(text.replace(old, new, 1))
            return made.bindings.Python(API, made.bindings.load_tables(changed)).check()

    def test_a_difference_of_pythons_tables_is_noticed(self):
        for old, new, sentence in (
            ('"hvd_op_wait": (None, [_P, _L])', '"hvd_op_wait": (None, [_P, _I])', "takes a c_int as timeout_ns"),
            ('"hvd_op_wait": (None, [_P, _L])', '"hvd_op_wait": (None, [_P])', "has 1 parameters: expected 2"),
            ('"hvd_rank": (_I', '"hvd_rank": (_L', "hvd_rank gives another type than int32_t"),
            ('"hvd_rank":', '"hvd_rang":', "hvd_rang, which no header declares"),
            ('AddHostFn = CFUNCTYPE(c_int32', "AddHostFn = CFUNCTYPE(None", "expected hvd_discover_fn"),
            ('("cause", Status)', '("cause", c_uint32)', "Recovery.cause is no hvd_status"),
            ('("rank", c_int32), ("size", c_int32)', '("size", c_int32), ("rank", c_int32)',
             "Membership is laid out as no struct")):
            with self.subTest(new):
                wrong = self.noticed("bindings/python/hvd/_abi.py", (old, new), "python")
                self.assertIn(sentence, "\n".join(wrong))

    def test_a_difference_of_nodes_tables_is_noticed(self):
        for old, new, sentence in (
            ("size_t index, _Inout_ hvd_tensor", "int32 index, _Inout_ hvd_tensor", "takes int32 as index"),
            ("hvd_op *op, _Out_ int32 *fd", "hvd_op *op", "hvd_op_get_fd has 2 parameters: expected 3"),
            ("uint64 hvd_state_revision", "int64 hvd_state_revision", "hvd_state_revision gives int64"),
            ('["op_test"', '["op_tset"', "hvd_op_tset, which no header declares"),
            ("int32 hvd_reset_fn", "int64 hvd_reset_fn", "hvd_reset_fn gives int64"),
            ('ndim: "int32"', 'ndim: "int64"', "hvd_tensor.ndim stands where the header has int32_t ndim"),
            ('koffi.array("char", 512) }),', 'koffi.array("char", 511) }),', "hvd_error.message stands where"),
            ("revision: \"uint64\", commits", "commits: \"uint64\", revision", "hvd_state_info.commits stands where")):
            with self.subTest(new):
                self.assertIn(sentence, "\n".join(self.noticed("bindings/node/lib/abi.js", (old, new), "node")))

    def test_the_tables_are_the_headers(self):
        self.assertEqual([], imported().bindings.differences(API, ROOT))


if __name__ == "__main__":
    unittest.main(verbosity=2)
