"""The faults of chaos.py: what befalls a job. Each gives whether it did anything."""

import os
import signal
import subprocess
import time

import harness
from harness import PATIENCE

MAX_NP = 6
HEARTBEAT_TIMEOUT = 4.0  # of the driver; stops are shorter or longer
PROGRESS_S = 60 * PATIENCE
HVDRUN = os.path.join(harness.BIN, "hvdrun")


class Faults:
    """Of a job (chaos.Chaos), which has `job`, `random`, `hosts`, `agents` and what was done to them."""

    # ---- what there is ----

    def members(self):
        """The newest generation in which training began, by rank, but for processes that were killed."""
        trains = self.job.find("train")
        newest = max((e["gen"] for e in trains), default=0)
        return sorted((e for e in trains if e["gen"] == newest and e["pid"] not in self.doomed),
                      key=lambda e: e["rank"])

    def stays(self, member, hosts=None):
        """It runs, and its place is there."""
        hosts = self.hosts if hosts is None else hosts
        return (member["pid"] not in self.stopped and member["pid"] not in self.going and
                member["host"] not in self.drained and member["rank"] < self.scaled and
                int(member["slot"]) < hosts.get(member["host"], 0))

    def victims(self):
        """Members that may die: one that holds state and stays is left in any case."""
        members = self.members()
        staying = [e for e in members if self.stays(e)]
        if not staying:
            return []
        spared = self.random.choice(staying)
        return [e for e in members if e is not spared and e["pid"] not in self.stopped]

    def kill(self, victim, number=signal.SIGKILL):
        if number == signal.SIGKILL:
            self.doomed.add(victim["pid"])
        return self.job.kill_if_alive(victim, number)

    def nap(self, low, high):
        time.sleep(self.random.uniform(low, high))

    # ---- faults ----

    def one_dies(self):
        victims = self.victims()
        return bool(victims) and self.kill(self.random.choice(victims))

    def burst(self):
        """Several die, one after the other, also while the others recover."""
        victims = self.victims()
        if not victims:
            return False
        for victim in self.random.sample(victims, self.random.randint(1, len(victims))):
            self.kill(victim)
            if self.random.random() < 0.7:
                self.nap(0.0, 0.08)
        return True

    def rank_zero_dies(self):
        members = self.members()
        return any(self.stays(e) for e in members[1:]) and self.kill(members[0])

    def source_dies(self):
        """A newcomer joins, and the member that gives it the state dies in the midst of that."""
        victims = self.victims()
        if not victims:
            return False
        self.job.make_gate("source")  # whoever gives state away waits at it
        mark = self.job.mark()
        try:
            self.kill(self.random.choice(victims))
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and not self.job.find("fault", since=mark):
                time.sleep(0.002)
            waiting = [e for e in self.job.find("fault", since=mark) if e["pid"] not in self.doomed]
            others = [
                e for e in self.members() if waiting and e["pid"] != waiting[0]["pid"] and self.stays(e)
            ]
            return bool(others) and self.kill(waiting[0])
        finally:
            self.job.open("source")

    def short_stop(self):
        return self._stop(0.05, HEARTBEAT_TIMEOUT * 0.5)

    def long_stop(self):
        return self._stop(HEARTBEAT_TIMEOUT * 1.2 * PATIENCE, HEARTBEAT_TIMEOUT * 2 * PATIENCE)

    def _stop(self, low, high):
        victims = self.victims()
        if not victims:
            return False
        victim = self.random.choice(victims)
        if not self.kill(victim, signal.SIGSTOP):
            return False
        self.stopped[victim["pid"]] = (time.monotonic() + self.random.uniform(low, high), victim)
        return True

    def driver_stops(self):
        """Held up for longer than its own heartbeat_timeout, as by Ctrl-Z; nobody may be lost by that."""
        if self.stopped:
            return False
        os.kill(self.job.driver(), signal.SIGSTOP)
        try:
            self.nap(0.2, HEARTBEAT_TIMEOUT * 1.5)
            if self.random.random() < 0.3:
                self.one_dies()
                self.nap(0.0, 0.5)
        finally:
            os.kill(self.job.driver(), signal.SIGCONT)
        return True

    def driver_dies(self):
        """Its keeper starts another one, and the job goes on (contract 14). A worker may die in the same
        moment."""
        now = time.monotonic()
        self.deaths = [at for at in self.deaths
                       if now - at < 70]  # five drivers within a minute end the job, by design
        pid = self.job.driver()
        if self.stopped or len(self.deaths) >= 3 or pid == self.job.process.pid:
            return False
        self.deaths.append(now)
        mark = self.job.mark()
        worker_too = self.random.choice([None, None, "before", "after"])
        if worker_too == "before":
            self.one_dies()
            self.nap(0.0, 0.1)
        os.kill(pid, signal.SIGKILL)
        if worker_too == "after":
            self.nap(0.0, 0.3)
            self.one_dies()
        deadline = time.monotonic() + PROGRESS_S
        while not self.job.find("hvdrun", since=mark, text=harness.containing("taken over after")):
            if self.job.find("done") or self.job.process.poll() is not None:
                break
            if time.monotonic() > deadline:
                self.job.fail("no driver has taken over in %g s" % PROGRESS_S)
            time.sleep(0.02)
        return True

    def one_leaves(self):
        """It goes at its next commit, by its own wish."""
        victims = self.victims() if self.leaves else []
        if not victims:
            return False
        victim = self.random.choice(victims)
        self.going.add(victim["pid"])
        return self.kill(victim, signal.SIGTERM)

    def ctl(self, *words):
        done = subprocess.run([HVDRUN, "ctl", "--address",
                               os.path.join(self.folder, "address"), *words], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE, check=False)
        if done.returncode != 0 and not self.job.find("done") and self.job.process.poll() is None:
            self.job.fail("ctl %s ended with %d: %s" % (" ".join(words), done.returncode, done.stdout))

    def clock_jumps(self):
        """The wall clocks of some processes jump, each by itself. Nobody may go by them."""
        agents = ["agent." + host for host, agent in sorted(self.agents.items()) if agent.poll() is None]
        names = ["driver"] + agents + [e["pid"] for e in self.members() if e["pid"] not in self.stopped]
        for name in self.random.sample(names, self.random.randint(1, len(names))):
            self.clocks.jump(name, self.random.choice([-1, 1]) * self.random.choice([180, 3600, 6 * 3600]))
        return True

    def host_drains(self):
        """An operator drains a host; asked again, it may be used again."""
        if self.drained:
            self.ctl("undrain", self.drained.pop())
            return True
        host = self.random.choice(sorted({e["host"] for e in self.members()} or {"a"}))
        if host not in self.hosts or not any(self.stays(e) and e["host"] != host for e in self.members()):
            return False
        self.drained.add(host)
        self.ctl("drain", host, "%gs" % self.random.choice([0.5, 30]))
        return True

    def job_scales(self):
        self.scaled = self.random.randint(1, MAX_NP)
        self.ctl("scale", str(self.scaled))
        return True

    def agent_dies(self):
        return self._agent_goes(signal.SIGKILL)

    def agent_drains(self):
        """SIGTERM: its workers leave at their next commit, and so does it."""
        return self._agent_goes(signal.SIGTERM)

    def _agent_goes(self, number):
        """With its workers; another one comes for its host."""
        for host, agent in list(self.agents.items()):
            if agent.poll() is not None:  # the one before has gone by now
                self.agent_comes(host)
        usual = sorted(host for host, agent in self.agents.items() if agent.poll() is None)
        if not usual:
            return False
        host = self.random.choice(usual)
        members = self.members()
        if not any(self.stays(e) and e["host"] != host for e in members):
            return False
        for member in members:
            if member["host"] == host:
                (self.doomed if number == signal.SIGKILL else self.going).add(member["pid"])
        self.agents[host].send_signal(number)
        if number == signal.SIGKILL:
            self.agents[host].wait()
            self.nap(0.0, 2.0)
            self.agent_comes(host)
        return True

    def agent_stops(self):
        """It is held up for longer than heartbeat_timeout; its workers go on."""
        usual = sorted(host for host, agent in self.agents.items() if agent.poll() is None)
        if not usual:
            return False
        agent = self.agents[self.random.choice(usual)]
        agent.send_signal(signal.SIGSTOP)
        try:
            self.nap(0.2, HEARTBEAT_TIMEOUT * 1.5)
        finally:
            agent.send_signal(signal.SIGCONT)
        return True

    def hosts_change(self):
        """Up to four changes within a second; a member that holds state keeps its place."""
        keepers = [e for e in self.members() if self.stays(e)]
        for _ in range(self.random.randint(1, 4)):
            hosts = dict(self.hosts)
            kind = self.random.choice(["add", "remove", "slots"])
            usual = sorted(set(hosts) - {"odd", "few"})
            if kind == "add" and len(hosts) < 5:
                hosts[self.random.choice([h for h in "abcdefgh"
                                          if h not in hosts])] = self.random.randint(1, 2)
            elif kind == "remove":
                del hosts[self.random.choice(usual)]
            else:
                hosts[self.random.choice(usual)] = self.random.randint(1, 2)
            keepers = [e for e in keepers if self.stays(e, hosts)] or keepers
            if any(self.stays(e, hosts) for e in keepers):
                self.set_hosts(hosts)
            self.nap(0.0, 0.3)
        return True

    def set_hosts(self, hosts):
        self.hosts = hosts
        self.job._write_discovery(self.job._lines(self._hosts()))

    def misfit_comes(self):
        return self._host("odd")

    def poor_host_comes(self):
        return self._host("few")

    def _host(self, name):
        """A host whose workers can't be members comes, and goes after a while."""
        hosts = dict(self.hosts)
        if hosts.pop(name, None) is None:
            hosts[name] = 1
        self.set_hosts(hosts)
        return True

    FAULTS = (one_dies, burst, burst, rank_zero_dies, source_dies, short_stop, long_stop, driver_stops,
              driver_dies, hosts_change, hosts_change, misfit_comes, poor_host_comes, one_leaves, host_drains,
              job_scales, clock_jumps, agent_dies, agent_stops, agent_drains)
    OF_DISCOVERY = ("hosts_change", "misfit_comes", "poor_host_comes")
    OF_AGENTS = ("agent_dies", "agent_stops", "agent_drains")
