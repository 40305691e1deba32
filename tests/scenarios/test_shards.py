"""Shards with copies on peers: S1, as many workers as copies are killed at every point; S2, one more."""


from harness import Job, ScenarioTest, main

NO_RESTART = {"restart": "false"}
ELEMENTS = 10007


class Shards(ScenarioTest):
    def _verify(self, job, steps, workers=None, copies=1):
        done = job.verify(steps, workers=workers)
        ranges = sorted((e["offset"], e["count"]) for e in done)
        for event in done:
            job.check(event["wrong"] == 0, "%s elements of %s are wrong" % (event["wrong"], event["host"]))
        at = 0
        for offset, count in ranges:
            job.check(offset == at, "ranges %s do not cover the vector" % ranges)
            at += count
        kept = job.find("memory")
        held, shards = sum(e["copies"] for e in kept), sum(e["shards"] for e in kept)
        job.check(shards == 8 * ELEMENTS, "shards have %s bytes" % shards)
        if isinstance(copies, int):
            job.check(held == shards * min(copies, len(kept) - 1), "copies have %s bytes" % held)
        else:  # parity, in one group or more
            part = shards / min(int(copies[1:]), len(kept) - 1)
            job.check(0.4 * part <= held <= part + 1024, "parity has %s bytes" % held)
        job.check(at == ELEMENTS, "ranges %s do not cover the vector" % ranges)

    def _killed(self, faults, hosts="a:2,b:2", copies=1, left=3, steps=12):
        job = Job(self, hosts, ["steps=%d" % steps, "commit=4", "gate=9",
                                "shards=%d:%s" % (ELEMENTS, copies)], np=4, min_np=1, max_np=4,
                  options=NO_RESTART, faults=faults)
        # Listeners are called in a thread of their own: training must not end before they are.
        job.wait("fault", count=4 - left)
        job.finish(0)
        self._verify(job, steps, left, copies)
        return job

    def test_S1_killed_while_training(self):
        for rank in range(4):
            job = self._killed("before_allreduce:*/*/%d/*/6/*=kill" % rank)
            self.assertEqual({e["step"] for e in job.find("train", gen=2)}, {4})

    def test_S1_killed_before_the_commit(self):
        self._killed("before_commit:*/*/1/*/8/*=kill")

    def test_S1_killed_within_the_commit(self):
        for rank in (0, 2):
            self._killed("save:*/*/%d/*/8/*=kill" % rank)

    def test_S1_killed_after_the_commit(self):
        job = self._killed("after_commit:*/*/3/*/8/*=kill")
        self.assertEqual({e["step"] for e in job.find("train", gen=2)}, {8})

    def test_S1_two_are_killed_at_once_with_two_copies(self):
        self._killed("before_allreduce:*/*/1/*/6/*=kill,before_allreduce:*/*/2/*/6/*=kill", copies=2, left=2)

    def test_S1_another_is_killed_while_the_others_recover(self):
        for point in ("event_peer_lost", "restore", "reshard", "reset"):
            self._killed("before_allreduce:*/*/2/*/6/*=kill,%s:*/*/1/*/*/*=kill" % point, copies=2, left=2)

    def test_S1_another_is_killed_after_the_copies_were_made_again(self):
        self._killed("before_allreduce:*/*/2/*/6/*=kill,before_allreduce:*/*/1/*/5/*=kill", left=2)

    def test_S1_a_whole_host_is_lost(self):
        """Copies are on other hosts."""
        self._killed("before_allreduce:a/0/*/*/6/*=kill,before_allreduce:a/1/*/*/6/*=kill", left=2)

    def test_S1_killed_with_parity(self):
        for rank in range(4):
            self._killed("before_allreduce:*/*/%d/*/6/*=kill" % rank, copies="p3")
        self._killed("save:*/*/2/*/8/*=kill", copies="p2")

    def test_S1_one_of_each_group_is_killed_at_once(self):
        """Of six in two groups; a group has a worker on each host."""
        job = Job(self, "a:2,b:2,c:2",
                  ["steps=12", "commit=4", "shards=%d:p2" % ELEMENTS], np=6, min_np=1, max_np=6,
                  options=NO_RESTART, faults="before_allreduce:b/0/*/*/6/*=kill,restore:b/1/*/*/*/*=kill")
        job.finish(0)
        self._verify(job, 12, 4, "p2")

    def test_S2_two_of_a_group_are_killed(self):
        job = Job(self, "a:2,b:2", ["steps=12", "commit=4", "shards=%d:p3" % ELEMENTS], np=4, min_np=1,
                  max_np=4, options=NO_RESTART,
                  faults="before_allreduce:*/*/2/*/6/*=kill,restore:*/*/0/*/*/*=kill")
        job.finish(1)
        ends = [e for e in job.find("end") if e["status"] == "HVD_JOB_FAILED"]
        self.assertTrue(ends)
        for end in ends:
            self.assertRegex(
                end["msg"],
                r"elements \d+ to \d+ of state key 'moments'.* are lost: rank 0 \(host a\) held them, "
                r"rank 1 \(host a\) and rank 2 \(host b\) and rank 3 \(host b\) their parity, "
                r"and more than one of these is lost")

    def test_S1_four_three_five_two(self):
        self._four_three_five_two(1)

    def test_S1_four_three_five_two_with_parity(self):
        self._four_three_five_two("p2")

    def _four_three_five_two(self, copies):
        job = Job(self, "a:2,b:1,c:1", [
            "steps=40", "commit=2",
            "shards=%d:%s" % (ELEMENTS, copies), "log=3", "gate=10", "gate=20", "gate=30"
        ], np=4, min_np=2, max_np=5, options=NO_RESTART)
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.wait_interrupt(4)
        job.open("step.10")
        job.wait("gate", step=20)
        since = job.mark()
        job.set_hosts("a:2,b:1,d:2")
        job.wait_interrupt(3, since=since)
        job.open("step.20")
        job.wait("gate", step=30)
        since = job.mark()
        job.set_hosts("d:2")
        job.wait_interrupt(5, since=since)
        job.open("step.30")
        job.finish(0)
        self.assertEqual([size for _, size in job.generations()], [4, 3, 5, 2])
        self._verify(job, 40, 2, copies)

    def test_S2_more_are_lost_than_there_are_copies(self):
        job = Job(self, "a:2,b:2", ["steps=12", "commit=4", "shards=%d" % ELEMENTS], np=4, min_np=1, max_np=4,
                  options=NO_RESTART,
                  faults="before_allreduce:*/*/0/*/6/*=kill,restore:*/*/2/*/*/*=kill")
        job.finish(1)
        ends = [e for e in job.find("end") if e["status"] == "HVD_JOB_FAILED"]
        self.assertTrue(ends)
        for end in ends:
            self.assertRegex(
                end["msg"], r"revision 1: elements \d+ to \d+ of state key 'moments'.* are lost: rank \d "
                r"\(host a\) held them, rank \d \(host b\) the copy, and none of it is left")


if __name__ == "__main__":
    main()
