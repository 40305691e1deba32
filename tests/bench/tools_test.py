"""The comparison of two reports, the picture, and the judgement of the aims, on small reports made here."""

import contextlib
import copy
import io
import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "bench")]
import aims
import bench
import bench_compare
import bench_plot
import collective_bench


def time(us, over_hvd=None):
    cell = {"median_us": us, "low_us": us * 0.9, "high_us": us * 1.2}
    if over_hvd is not None:
        cell["over_hvd"] = {"median": over_hvd, "low": over_hvd / 2, "high": over_hvd * 2}
    return cell


def report():
    sizes = {
        "8 B": {
            "hvd": time(10),
            "gloo": time(400, 40),
            "openmpi": time(6, 0.6)
        },
        "64 MiB": {
            "hvd": time(10000),
            "gloo": time(31000, 3.1),
            "openmpi": time(20000, 2),
            "memcpy": time(3000, 0.3)
        }
    }
    return {
        "machine": {
            "cores": 2
        },
        "recovery_4_workers": {
            "median_ms": 10.0,
            "worst_ms": 16.0,
            "trials": 20
        },
        "commit_256MiB": {
            "commit_GBps": 10.0,
            "memcpy_GBps": 12.0
        },
        "collectives": {
            "settings": {
                "seconds": 9
            },
            "one_host": {
                "broadcast": {
                    "4 ranks": copy.deepcopy(sizes)
                },
                "allreduce": {
                    "4 ranks": copy.deepcopy(sizes)
                }
            }
        }
    }


def scaled(source, contender, factor):
    result = copy.deepcopy(source)
    for operation in result["collectives"]["one_host"].values():
        for cell in operation["4 ranks"].values():
            for key in ("median_us", "low_us", "high_us"):
                if contender in cell:
                    cell[contender][key] *= factor
    return result


class Compare(unittest.TestCase):

    def run_tool(self, old, new, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in ("old.json", "new.json")]
            for path, content in zip(paths, (old, new)):
                path.write_text(json.dumps(content))
            result = subprocess.run(
                [sys.executable,
                 str(ROOT / "scripts/bench_compare.py"), *map(str, paths), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True)
        return result.returncode, result.stdout

    def test_equal_reports_are_no_regression(self):
        status, text = self.run_tool(report(), report())
        self.assertEqual(0, status, text)
        self.assertIn("0 worse", text)

    def test_slower_beyond_the_tolerance_is_listed(self):
        new = report()
        new["collectives"]["one_host"]["allreduce"]["4 ranks"]["8 B"]["hvd"]["median_us"] = 13
        status, text = self.run_tool(report(), new)
        self.assertEqual(1, status, text)
        self.assertIn("x1.30  collectives / one_host / allreduce / 4 ranks / 8 B / hvd / median_us: 10 -> 13",
                      text)
        self.assertIn("1 worse", text)
        self.assertEqual(0, self.run_tool(report(), new, "--tolerance", "0.4")[0])

    def test_a_rate_is_better_when_it_is_larger(self):
        new = report()
        new["commit_256MiB"]["commit_GBps"] = 5.0
        status, text = self.run_tool(report(), new)
        self.assertEqual(1, status)
        self.assertIn("x2.00  commit_256MiB / commit_GBps", text)
        self.assertEqual(0, self.run_tool(new, report())[0])

    def test_what_others_took_is_no_regression_of_ours(self):
        self.assertEqual(0, self.run_tool(report(), scaled(report(), "gloo", 3))[0])

    def test_relative_takes_the_machine_out(self):
        new = report()
        for contender in ("hvd", "gloo", "openmpi", "memcpy"):
            new = scaled(new, contender, 2)
        self.assertEqual(1, self.run_tool(report(), new)[0])
        status, text = self.run_tool(report(), new, "--relative")
        self.assertEqual(0, status, text)
        self.assertIn("x2.00, taken out", text)

    def test_nothing_in_common_is_an_error(self):
        self.assertEqual(2, self.run_tool(report(), {"machine": {"cores": 4}})[0])

    def test_from_nothing_to_something_is_a_regression(self):
        old, new = {"recovery": {"sync_payload_bytes": 0}}, {"recovery": {"sync_payload_bytes": 5}}
        self.assertEqual(1, len(bench_compare.compare(old, new, 0.2)[2]))


class Plot(unittest.TestCase):

    def test_picture_is_well_formed_and_shows_every_contender(self):
        picture = bench_plot.svg(report()["collectives"])
        root = ElementTree.fromstring(picture)
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        for text in ("libhvd", "Gloo", "Open MPI", "8 B", "64 MiB", "10 ms", "size of the tensor"):
            self.assertIn(text, texts)
        self.assertIn("prefers-color-scheme:dark", picture)
        self.assertEqual(
            2,
            sum("class=\"line gloo\" d=\"M" in line and "h26" not in line for line in picture.splitlines()))

    def test_slower_is_higher(self):
        panel = bench_plot.Panel(0, [8, 64], 0, 4)
        self.assertLess(panel.y(1000), panel.y(10))
        self.assertAlmostEqual(bench_plot.BOTTOM, panel.y(1))
        self.assertAlmostEqual(bench_plot.TOP, panel.y(10000))

    def test_nothing_to_draw(self):
        self.assertFalse(bench_plot.drawable({}))
        with self.assertRaises(SystemExit):
            bench_plot.svg({})


class Aims(unittest.TestCase):

    def test_judgement(self):
        judged = {entry["aim"]: entry for entry in aims.judge(report()["collectives"])}
        fast = judged["allreduce 64 MiB, 4 ranks: times as fast as gloo"]
        self.assertEqual((3.1, True), (fast["median"], fast["met"]))
        slow = judged["allreduce 8 B, 4 ranks: time by name over openmpi's"]
        self.assertAlmostEqual(1 / 0.6, slow["median"], 3)
        self.assertTrue(slow["met"])
        self.assertAlmostEqual(1 / 1.2, slow["low"], 3)
        copies = judged["broadcast 64 MiB, 4 ranks: time over a copy for each receiver, by one thread"]
        self.assertAlmostEqual(1 / 0.9, copies["median"], 3)
        self.assertIsNone(judged["two hosts, broadcast 64 MiB, 2 ranks each: times as fast as gloo"]["met"])

    def test_libhvd_on_mpi_is_held_against_the_bare_library(self):
        sizes = {
            size: {
                "openmpi": time(bare),
                "hvd_mpi": {
                    **time(ours), "over_openmpi": {
                        "median": ours / bare,
                        "low": 0.9,
                        "high": 1.2
                    }
                }
            }
            for size, bare, ours in (("8 B", 6, 11), ("1 MiB", 300, 310), ("64 MiB", 20000, 24000))
        }
        measured = {"raw_mpi": {"allreduce": {"4 ranks": sizes}}}
        judged = {entry["aim"]: entry["met"] for entry in aims.judge(measured)}
        name = "%s %s, 4 ranks, libhvd on mpi under mpirun: time over openmpi's"
        self.assertTrue(judged[name % ("allreduce", "1 MiB")])
        self.assertFalse(judged[name % ("allreduce", "64 MiB")])
        self.assertIsNone(judged[name % ("broadcast", "1 MiB")])
        self.assertEqual(
            ["allreduce 8 B, 4 ranks: openmpi 6 us, hvd_mpi 11 us: naming and agreement add 5 us"],
            aims.naming(measured))
        self.assertIn("| 4 | 64 MiB | 20 ms | 24 ms (x1.2) |", "\n".join(bench.collectives_tables(measured)))

    def test_a_missed_aim_is_told(self):
        entry = aims.entry("x", ">=", 3, {"median": 2.9, "low": 2.0, "high": 3.5})
        self.assertFalse(entry["met"])
        self.assertIn("NO", aims.table([entry]))
        self.assertIn("| no |", "\n".join(bench.aims_table([entry])))

    def test_the_readme_has_what_was_measured(self):
        row = "broadcast 64 MiB: times as fast as openmpi"

        def measured(median, low, high):
            return {"median": median, "low": low, "high": high}

        lines = aims.readme([
            aims.entry("broadcast 64 MiB, 2 ranks", ">=", 1.5, measured(2.512, 2.2, 3.3), row, "2 ranks"),
            aims.entry("broadcast 64 MiB, 4 ranks", ">=", 1.5, measured(1.2, 1.1, 1.3), row, "4 ranks"),
            aims.entry("broadcast 64 MiB, 8 ranks", ">=", 1.5, None, row, "8 ranks"),
            aims.entry("allreduce, 4 ranks", "<=", 2, measured(0.8, 0.7, 0.9), "allreduce 8 B: of gloo",
                       "4 ranks"),
            aims.entry("a step with a check", "<=", 1.05, measured(1.251, 1.08, 1.65)),
            aims.entry("broadcast 1 MiB", "<=", 1.05, measured(0.5, 0.4, 0.6), "broadcast: over openmpi's",
                       "1 MiB"),
            aims.entry("not measured", "<=", 1, None)
        ]).splitlines()
        self.assertEqual([
            "| what | aim | 2 ranks | 4 ranks |", "|---|---|---|---|",
            "| broadcast 64 MiB: times as fast as Open MPI | at least 1.5 | 2.51 (2.2 to 3.3) |"
            " **1.2 (1.1 to 1.3)** |", "| allreduce 8 B: of Gloo | at most 2 |  | 0.8 (0.7 to 0.9) |", "",
            "| what | aim | measured | met |", "|---|---|---|---|",
            "| a step with a check | at most 1.05 | 1.25 (1.08 to 1.65) | no |", "", "| what | aim | 1 MiB |",
            "|---|---|---|", "| broadcast: over Open MPI's | at most 1.05 | 0.5 (0.4 to 0.6) |"
        ], lines)


class FakeGroup:

    def __init__(self, us):
        self.us, self.released, self.checks = us, 0, []

    def run(self, operation, size, samples, batch, warm, check):
        self.checks.append(check)
        return [self.us] * samples

    def release(self):
        self.released += 1


class Rounds(unittest.TestCase):

    def test_contenders_take_turns_and_ratios_are_taken_within_a_round(self):
        groups = {"hvd": FakeGroup(10), "gloo": FakeGroup(30)}
        calls = {name: collective_bench.Call(group, "allreduce", 8, 3, 5) for name, group in groups.items()}
        medians = collective_bench.take_turns(calls, 4)
        self.assertEqual({"hvd": [10] * 4, "gloo": [30] * 4}, medians)
        self.assertEqual({
            "median": 3,
            "low": 3,
            "high": 3
        }, collective_bench.ratio(medians["gloo"], medians["hvd"]))
        for group in groups.values():
            self.assertEqual([1, 0, 0, 0], group.checks)  # the result is checked once, before it is measured
            self.assertEqual(1, group.released)

    def test_a_slow_machine_gets_fewer_rounds_of_all(self):
        calls = {name: collective_bench.Call(FakeGroup(1), "allreduce", 8, 3, 5) for name in ("hvd", "gloo")}
        clock = iter(range(0, 10000, 100))
        medians = collective_bench.take_turns(calls, 7, now=lambda: next(clock))
        self.assertEqual([collective_bench.FEWEST] * 2, [len(values) for values in medians.values()])

    def test_tables_name_every_contender(self):
        with contextlib.redirect_stdout(io.StringIO()):
            text = "\n".join(bench.collectives_tables(report()["collectives"]))
        self.assertIn("| 4 | 8 B | 10 us | 400 us (x40) | 6 us (x0.6) |", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
