"""What a job's timelines tell of a death and the recovery from it."""

import glob
import json
import os
import shutil
import subprocess
import tempfile

from harness import BIN, Job, ScenarioTest, main


def repaired(path):
    """The events of one worker's file, whole or cut off behind an event."""
    with open(path, encoding="utf-8") as file:
        text = file.read().rstrip()
    return json.loads(text if text.endswith("]") else text + "]")


class Timeline(ScenarioTest):
    def setUp(self):
        super().setUp()
        self.directory = tempfile.mkdtemp(prefix="hvd-timeline-")
        self.addCleanup(shutil.rmtree, self.directory)

    def merged(self):
        files = sorted(glob.glob(os.path.join(self.directory, "trace.*.json")))
        target = os.path.join(self.directory, "merged")
        subprocess.run([os.path.join(BIN, "hvdrun"), "--merge-timeline", target] + files, check=True,
                       timeout=60, stderr=subprocess.PIPE)
        with open(target, encoding="utf-8") as file:
            return [{"name": "", **event} for event in json.load(file)["traceEvents"]]  # an end bears none

    def test_a_recovery_and_its_phases(self):
        job = Job(self, "a:3", ["steps=15", "commit=5"], np=3, min_np=2, max_np=3,
                  options={"restart": "false"},
                  flags=["--timeline-filename",
                         os.path.join(self.directory, "trace")], faults="before_allreduce:*/*/1/*/7/*=kill")
        job.finish(0)
        job.verify(15, workers=2)

        # It was killed, and its file can be read all the same; it lacks the last tenth of a second.
        killed = repaired(os.path.join(self.directory, "trace.2.json"))
        self.assertEqual((killed[0]["name"], killed[0]["args"]["host"]), ("hvd_clock", "a"))

        events = self.merged()
        lanes = {pid: [e for e in events if e["pid"] == pid] for pid in {e["pid"] for e in events}}
        self.assertEqual(set(lanes), {1, 2, 3})
        names = {
            pid: [e["args"]["name"] for e in lane if e["name"] == "process_name"]
            for pid, lane in lanes.items()
        }
        self.assertIn(names.pop(2), ([], ["rank 1 (host a, worker 2)"]))
        self.assertEqual(names, {1: ["rank 0 (host a, worker 1)"] * 2,
                                 3: ["rank 2 (host a, worker 3)", "rank 1 (host a, worker 3)"]})
        for pid in (1, 3):
            self._survivor(lanes[pid])
        recoveries = [e["ts"] for e in events if e["ph"] == "B"]
        self.assertEqual(len(recoveries), 2)

    def _survivor(self, lane):
        begin, = [e for e in lane if e["ph"] == "B"]
        end, = [e for e in lane if e["ph"] == "E"]
        self.assertEqual(begin["name"], "recovery")
        self.assertEqual(begin["args"]["cause"], "HVD_PEER_LOST")
        self.assertEqual(end["args"]["to_generation"], 2)
        row = sorted(
            (e for e in lane if e["ph"] == "X" and e["tid"] == begin["tid"] and e["ts"] >= begin["ts"]),
            key=lambda e: e["ts"])
        phases = [e["name"] for e in row]
        self.assertEqual([p for p in phases if p != "abort"],
                         ["restore", "forming", "connecting", "sync", "reset callbacks"])
        for before, after in zip(row, row[1:]):
            self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.002)
        self.assertLessEqual(row[-1]["ts"] + row[-1]["dur"], end["ts"] + 0.002)
        self.assertTrue([e for e in lane if e["name"] == "peer lost" and e["ph"] == "i"])

        state = [e for e in lane if e.get("cat") == "state"]
        self.assertEqual([e["args"]["revision"] for e in state if e["name"] == "restore"], [1])
        commits = [e for e in state if e["name"] == "commit"]
        self.assertEqual([e["args"]["revision"] for e in commits], [1, 2, 3])
        self.assertTrue(all(e["args"]["bytes"] > 0 for e in commits))
        self._operations([e for e in lane if e.get("cat") in ("operation", "phase")])

    def _operations(self, slices):
        whole = [e for e in slices if e["cat"] == "operation"]
        reduced = [e for e in whole if e["args"]["kind"] == "allreduce" and "status" not in e["args"]]
        self.assertGreaterEqual(len(reduced), 15)
        self.assertTrue(all(e["args"]["bytes"] > 0 and e["args"]["dtype"] for e in reduced))
        self.assertIn("HVD_PEER_LOST", {e["args"].get("status") for e in whole})
        for row in {e["tid"] for e in whole}:
            line = sorted((e for e in whole if e["tid"] == row), key=lambda e: e["ts"])
            for before, after in zip(line, line[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.002,
                                     "they overlap in a row")
        for outer in reduced:
            inner = [
                e["name"] for e in slices
                if e["cat"] == "phase" and e["tid"] == outer["tid"] and e["ts"] >= outer["ts"] -
                0.002 and e["ts"] + e["dur"] <= outer["ts"] + outer["dur"] + 0.002
            ]
            self.assertEqual([name for name in inner if name != "QUEUE"], ["NEGOTIATE", "allreduce"])


if __name__ == "__main__":
    main()
