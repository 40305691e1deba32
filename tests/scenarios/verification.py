"""What must hold of the training that a job's workers tell of, whatever befell them."""

import reference


class Verification:
    """Of a Job, which has the events: find, and check, which fails the test with what the job said."""

    def verify(self, steps, workers=None):
        """Checks everything that holds in any job that ended in success; returns the done events."""
        done = self.find("done")
        self.check(done, "no worker was done")
        if workers is not None:
            self.check(len(done) == workers, "%d workers were done, expected %d" % (len(done), workers))
        for event in done:
            self.check(event["step"] == steps,
                       "a worker was done after %d steps of %d" % (event["step"], steps))
            for shutdown in self.find("shutdown", pid=event["pid"]):
                self.check(shutdown["status"] == "HVD_OK",
                           "shutdown of a worker that was done: %s" % shutdown["line"])
        if len(self.generations()) == 1 and not self.find("fault"):
            self.check(not self.find("event_peer_lost"), "a loss was told though nobody was lost")
        if self.address_behind_agents:
            for event in self.find("start"):
                self.check(event["driver"].startswith(self.address_behind_agents),
                           "not behind an agent: %s" % event["line"])
        self._verify_steps()
        self._verify_generations()
        sizes = self.sizes(steps)
        wanted = reference.checksum_of(sizes)
        for event in done:
            self.check(
                event["sum"] == wanted, "final state %s of %s/%d is not %s, what steps of sizes %s give" %
                (event["sum"], event["host"], event["slot"], wanted, sizes))
            self.check(event["pad"] == done[0]["pad"], "ballast differs")
            self.check(event["contributions"] == sum(sizes), "contributions")
        return done

    def sizes(self, steps):
        """Size of each step as the newest generation that did it saw it."""
        newest = {}
        for event in self.find("step"):
            at = event["step"] - 1
            if at not in newest or newest[at]["gen"] <= event["gen"]:
                newest[at] = event
        self.check(
            sorted(newest) == list(range(steps)), "steps %s, expected 0..%d" % (sorted(newest), steps - 1))
        return [newest[at]["size"] for at in range(steps)]

    def _verify_steps(self):
        """Within a generation, all ranks compute the same."""
        seen = {}
        for event in self.find("step"):
            first = seen.setdefault((event["gen"], event["step"]), event)
            self.check((event["sum"], event["size"]) == (first["sum"], first["size"]),
                       "ranks differ after a step: %s and %s" % (first["line"], event["line"]))

    def _verify_generations(self):
        """Members agree when training begins; survivors keep their order and lead; nothing committed is lost.
        """
        generations = {}
        for event in self.find("train"):
            generations.setdefault(event["gen"], []).append(event)
        commits = {}
        known = set()
        before = []
        for generation in sorted(generations):
            trains = sorted(generations[generation], key=lambda e: e["rank"])
            ranks = [e["rank"] for e in trains]
            self.check(
                len(set(ranks)) == len(ranks), "ranks twice in generation %d: %s" % (generation, ranks))
            for field in ("size", "step", "rev", "sum"):
                self.check(len({e[field] for e in trains}) == 1,
                           "%s differs at the start of generation %d" % (field, generation))
            self.check(ranks[-1] < trains[0]["size"], "rank beyond size in generation %d" % generation)
            members = [e["worker"] for e in trains]
            # Whose sync a loss overtook may not have told the driver of it: it counts as without state then.
            stepped = {e["worker"] for e in self.find("step") if e["gen"] < generation}
            survivors = [w for w in members if w in before and w in stepped]
            self.check(survivors == [w for w in before if w in members and w in stepped],
                       "order changed from %s to %s in generation %d" % (before, members, generation))
            old = [w in known for w in members if w in stepped or w not in known]
            self.check(old == sorted(old, reverse=True),
                       "a newcomer before a survivor in generation %d" % generation)
            for event in self.find("commit"):
                if event["gen"] < generation:
                    commits[event["worker"]] = max(commits.get(event["worker"], 0), event["step"])
            kept = max([commits.get(w, 0) for w in members], default=0)
            self.check(
                trains[0]["step"] >= kept,
                "generation %d began at step %d, but a member had committed step %d" %
                (generation, trains[0]["step"], kept))
            known.update(members)
            before = members

    def assert_no_step_twice(self):
        """Nobody rolled back."""
        seen = set()
        for event in self.find("step"):
            key = (event["worker"], event["step"])
            self.check(key not in seen, "worker %d did step %d twice" % key)
            seen.add(key)

    def generations(self):
        """[(generation, size)] in which training began."""
        return sorted({(e["gen"], e["size"]) for e in self.find("train")})
