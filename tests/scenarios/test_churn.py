"""Random churn from a seed: workers are killed, stopped and continued, hosts come and go, in a random order,
and every survivor still ends with the state that the record of sizes gives.

HVD_TEST_SEED takes one seed, HVD_TEST_CHURN the number of changes in a job.
"""

import os
import random
import signal

from harness import Job, ScenarioTest, main

CHANGES = int(os.environ.get("HVD_TEST_CHURN", "8"))
GAP = 7  # steps between two changes; commits at each third step, so that some are lost


class Churn(ScenarioTest):
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
            if kind != "remove" and len(hosts) < 4:
                hosts[chance.choice([h for h in "abcdef" if h not in hosts])] = chance.randint(1, 2)
            if kind != "add" and len(hosts) > 1:
                del hosts[chance.choice(sorted(hosts))]
            job.set_hosts(",".join("%s:%d" % item for item in sorted(hosts.items())), runs=2)

    def _churn(self, seed):
        chance = random.Random(seed)
        steps = (CHANGES + 1) * GAP
        gates = [GAP * (i + 1) for i in range(CHANGES)]
        hosts = {"a": 2, "b": 1}
        stopped = {}
        job = Job(self, "a:2,b:1",
                  ["steps=%d" % steps, "commit=3", "noterm=1"] + ["gate=%d" % g for g in gates], np=3,
                  min_np=1, max_np=5, options={"heartbeat_timeout": 1.5, "join_settle": 0.2})
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
        for seed in [int(given)] if given else [1, 2, 3, 4]:
            with self.subTest(seed=seed):
                self._churn(seed)


if __name__ == "__main__":
    main()
