"""Nothing grows over a thousand generations: neither in a worker that lives through all of them nor in the
driver.

HVD_TEST_GENERATIONS takes another number of generations.
"""

import os
import signal
import time

from harness import PATIENCE, Job, ScenarioTest, main

GENERATIONS = int(os.environ.get("HVD_TEST_GENERATIONS", "1000"))
WARM = max(50, GENERATIONS // 5)  # from here on nothing may grow
MOST_BYTES = 3 << 20              # the allocator's own, and a bounded history of recoveries


def lines(path):
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace").splitlines()


def usage(pid):
    """What a process holds: threads, descriptors, mappings, children, bytes of memory."""
    proc = "/proc/%d/" % pid
    status = dict(line.split(":", 1) for line in lines(proc + "status"))
    children = sum(
        len(lines(proc + "task/%s/children" % task)[0].split()) if lines(proc +
                                                                         "task/%s/children" % task) else 0
        for task in os.listdir(proc + "task"))
    maps = lines(proc + "maps")
    # A sanitizer's own memory is no leak: the address sanitizer tells of those at the end.
    sanitized = any("/libasan." in line or "/libtsan." in line for line in maps)
    return {"threads": int(status["Threads"]), "descriptors": len(os.listdir(proc + "fd")),
            "mappings": 0 if sanitized else len(maps), "children": children,
            "bytes": 0 if sanitized else int(status["VmRSS"].split()[0]) * 1024}


def least(pids, samples=40):
    """The least of each over a while: what is held all the time, and not for a moment."""
    result = {}
    for _ in range(samples):
        for name, pid in pids.items():
            try:
                now = usage(pid)
            except (OSError, IndexError):  # a task that ends meanwhile
                continue
            kept = result.setdefault(name, now)
            for key, value in now.items():
                kept[key] = min(kept[key], value)
        time.sleep(0.01)
    return result


class Leaks(ScenarioTest):
    def _generations(self, environment):
        """Worker 1 dies in each generation that it takes part in; worker 0 lives through all of them."""
        shared = set(os.listdir("/dev/shm"))
        job = Job(
            self,
            "a:2",
            ["steps=100000", "commit=5", "pace=2", "pad=65536"],
            np=2,
            min_np=1,
            max_np=2,
            script=False,
            options={
                "restart_delay_min": 0.001, "restart_delay_max": 0.001, "join_settle": 0,
                "blocklist_after": 1000000
            },
            # With an arena of malloc's for each thread that meets another, mappings would come without
            # a leak.
            environment={"MALLOC_ARENA_MAX": "1", **environment},
            faults="after_allreduce:*/1/*/*/*/*=+kill",
            flags=())
        job.keep("train", "init", "hvdrun")
        survivor = job.wait("train", rank=0)
        pids = {"survivor": survivor["pid"], "hvdrun": job.driver(), "keeper": job.process.pid}
        before = None
        deadline = time.monotonic() + 0.5 * GENERATIONS * PATIENCE
        while True:
            job.check(time.monotonic() < deadline and job.process.poll() is None, "the job does not get on")
            generation = max(e["gen"] for e in job.find("train", pid=survivor["pid"]))
            if before is None and generation >= WARM:
                before = least(pids)
            if generation >= GENERATIONS:
                break
            time.sleep(0.05)
        after = least(pids)
        temporary = [name for name in os.listdir(job.directory) if name.startswith("hvd-job.")]
        print("\nafter %d generations %s\nafter %d generations %s" % (WARM, before, generation, after))
        for name in pids:
            for key in ("threads", "descriptors", "mappings", "children"):
                # Of a worker under way, and of the connections to it: a leak would show by hundreds.
                slack = {"threads": 0, "descriptors": 8, "mappings": 4, "children": 1}[key]
                job.check(after[name][key] <= before[name][key] + slack, "%s of %s grew from %d to %d" % (
                    key, name, before[name][key], after[name][key]))
            job.check(after[name]["bytes"] <= before[name]["bytes"] + MOST_BYTES,
                      "memory of %s grew by %d bytes" % (name, after[name]["bytes"] - before[name]["bytes"]))
        job.check(len(temporary) <= 2, "job folders: %s" % temporary)
        job.process.send_signal(signal.SIGTERM)
        job.finish(job.process.wait(60 * PATIENCE) or 1)
        ours = {name for name in set(os.listdir("/dev/shm")) - shared if "hvd" in name}
        self.assertEqual(ours, set())

    def test_by_shared_memory(self):
        self._generations({})

    def test_by_connections(self):
        self._generations({"HVD_LOCAL": "off"})


if __name__ == "__main__":
    main()
