"""Random churn from a seed: workers are killed, stopped and continued, hosts come and go, in a random order,
and every survivor still ends with the state that the record of sizes gives.

HVD_TEST_SEED takes one seed, HVD_TEST_CHURN the number of changes in a job.
"""

import os
import random
import signal

from harness import PATIENCE, Job, ScenarioTest, main

CHANGES = int(os.environ.get("HVD_TEST_CHURN", "8"))
GAP = 7  # steps between two changes; commits at each third step, so that some are lost


class Churn(ScenarioTest):
    start = {"a": 2, "b": 1}
    max_np = 5
    heartbeat_timeout = 1.5
    seeds = (1, 2, 3, 4)

    def _resize(self, chance, hosts, kind):
        if kind != "remove" and len(hosts) < 4:
            hosts[chance.choice([h for h in "abcdef" if h not in hosts])] = chance.randint(1, 2)
        if kind != "add" and len(hosts) > 1:
            del hosts[chance.choice(sorted(hosts))]

    def _members(self, job):
        """Workers of the newest generation in which training began, by rank."""
        trains = job.find("train")
        newest = max(e["gen"] for e in trains)
        return sorted((e for e in trains if e["gen"] == newest), key=lambda e: e["rank"])

    def _change(self, job, chance, hosts, stopped):
        members = [e for e in self._members(job) if e["pid"] not in stopped]
        kind = chance.choice(["kill", "kill", "several", "stop", "add", "remove", "both"])
        if kind in ("kill", "several") and len(members) > 1:
            most = len(members) - 1 if kind == "several" else 1
            for victim in chance.sample(members, chance.randint(1, most)):
                job.kill_if_alive(victim)
        elif kind == "stop" and len(members) > 1:
            victim = chance.choice(members)
            if job.kill_if_alive(victim, signal.SIGSTOP):
                stopped[victim["pid"]] = victim
        else:
            self._resize(chance, hosts, kind)
            job.set_hosts(self._told(hosts), runs=2)

    @staticmethod
    def _told(hosts):
        return ",".join("%s:%d" % item for item in sorted(hosts.items()))

    def _churn(self, seed):
        chance = random.Random(seed)
        steps = (CHANGES + 1) * GAP
        gates = [GAP * (i + 1) for i in range(CHANGES)]
        hosts = dict(self.start)
        stopped = {}
        job = Job(self, self._told(hosts),
                  ["steps=%d" % steps, "commit=3", "noterm=1"] + ["gate=%d" % g for g in gates],
                  np=sum(hosts.values()), min_np=1, max_np=self.max_np,
                  options={"heartbeat_timeout": self.heartbeat_timeout, "join_settle": 0.2})
        for gate in gates:
            job.wait("gate", step=gate)
            self._change(job, chance, hosts, stopped)
            job.open("step.%d" % gate)
            for pid in [pid for pid in stopped if chance.random() < 0.5]:
                job.kill_if_alive(stopped.pop(pid), signal.SIGCONT)
        for victim in stopped.values():
            job.kill_if_alive(victim, signal.SIGCONT)
        job.finish(0)
        job.verify(steps)

    def test_churn(self):
        given = os.environ.get("HVD_TEST_SEED")
        for seed in [int(given)] if given else self.seeds:
            with self.subTest(seed=seed):
                self._churn(seed)


class Crowd(Churn):
    """So many on one host that a rank maps the shared memory of few others."""
    start = {"a": 40}
    max_np = 48
    heartbeat_timeout = 5 * PATIENCE  # they take turns on the processors
    seeds = (1, 2)

    def _resize(self, chance, hosts, kind):
        hosts["a"] = chance.randint(33, self.max_np)


if __name__ == "__main__":
    main()
