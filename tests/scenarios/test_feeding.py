"""Newcomers and spares that are fed with the last commit while the others train on (N1 to N7)."""

import signal

from harness import PATIENCE, Job, ScenarioTest, containing, main

PAD = 24 << 20  # bytes of state that training does not change


def fed(job, **wanted):
    return job.wait("hvdrun", text=containing(r"was fed .* MiB within"), **wanted)


class Feeding(ScenarioTest):
    def start(self, hosts="a:2", steps=30, max_np=3, faults="", options=None, gates=(10, 20), pace=0,
              **rest):
        worker = ["steps=%d" % steps, "commit=1", "log=3", "pace=%d" % pace,
                  "pad=%d" % PAD] + ["gate=%d" % gate for gate in gates]
        # What can be copied within join_pause is left to the sync: of these few bytes that may be all.
        options = {"join_pause": 0.001, **(options or {})}
        return Job(self, hosts, worker, np=2, min_np=rest.pop("min_np", 1), max_np=max_np, faults=faults,
                   options=options, **rest)

    def moved_little(self, job, generation):
        """Checks what the sync of this generation moved, by each rank that was in the one before."""
        moved = [event["sync_bytes"] for event in job.find("recovery", to=generation)]
        job.check(moved and max(moved) < PAD // 8, "the sync moved %s bytes" % moved)

    def test_N1_a_newcomer_is_fed_before_the_others_stop(self):
        job = self.start()
        job.wait("gate", step=10)
        mark = job.mark()
        job.set_hosts("a:2,b:1")
        fed(job)
        job.wait_interrupt(2, since=mark)
        job.open("step.10")
        job.wait("gate", step=20, size=3)
        job.finish(0)
        job.verify(30, workers=3)
        job.assert_no_step_twice()
        self.assertEqual([size for _, size in job.generations()], [2, 3])
        self.moved_little(job, 2)

    def test_N2_a_newcomer_is_fed_while_each_step_commits(self):
        # A commit takes long where code is slow, and would leave no time to feed anyone.
        job = self.start(steps=500, gates=(10, 450), options={"join_settle": 0}, pace=20 * (PATIENCE - 1))
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.open("step.10")  # from here on nothing waits for anything, unless the newcomer is very slow
        fed(job)
        job.open("step.450")
        job.wait("train", gen=2, size=3, count=3)
        job.finish(0)
        job.verify(500, workers=3)
        job.assert_no_step_twice()
        self.assertEqual([e["fed"] > PAD // 2 for e in sorted(job.find("memory"), key=lambda e: e["host"])],
                         [False, False, True])
        self.moved_little(job, 2)

    def test_N3_two_newcomers_at_once(self):
        job = self.start(max_np=4)
        job.wait("gate", step=10)
        mark = job.mark()
        job.set_hosts("a:2,b:2")
        fed(job, count=2)
        job.wait_interrupt(2, since=mark)
        job.open("step.10")
        job.wait("gate", step=20, size=4)
        job.finish(0)
        job.verify(30, workers=4)
        job.assert_no_step_twice()

    def test_N4_who_feeds_is_killed(self):
        job = self.start(faults="log(feeds a worker):a/*/*/*/*/*=kill", options={"restart": "false"})
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.wait("event_peer_lost")
        job.open("step.10")
        gate = job.wait("gate", step=20)
        if gate["size"] == 1:  # the other one feeds it from where it was
            fed(job)
            job.wait_interrupt(1)
        job.finish(0)
        job.verify(30, workers=2)

    def test_N5_a_newcomer_is_killed_while_it_is_fed(self):
        job = self.start(faults="log(is fed by):b/*/*/*/*/*=kill")
        job.wait("gate", step=10)
        mark = job.mark()
        job.set_hosts("a:2,b:1")
        fed(job)  # the one that is started in its place
        job.wait_interrupt(2, since=mark)
        job.open("step.10")
        job.wait("gate", step=20, size=3)
        job.finish(0)
        job.verify(30, workers=3)
        job.assert_no_step_twice()
        self.assertEqual([size for _, size in job.generations()], [2, 3])

    def test_N6_a_spare_that_is_fed_takes_a_killed_ones_place(self):
        job = self.start(hosts="a:3", max_np=2, min_np=2, options={"spares": 1})
        job.wait("gate", step=10)
        fed(job)
        job.send_signal(job.wait("train", rank=1), signal.SIGKILL)
        job.wait("event_peer_lost")
        job.open("step.10")
        job.wait("train", size=2, gen=2, count=2)
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(job.generations()[:2], [(1, 2), (2, 2)])
        self.assertEqual([e["spares"] for e in job.find("recovery", to=2)], [1])
        self.moved_little(job, 2)

    def test_N7_what_was_never_fed_moves_in_the_sync(self):
        job = self.start(options={"feed_timeout": 0})
        job.wait("gate", step=10)
        mark = job.mark()
        job.set_hosts("a:2,b:1")
        job.wait_interrupt(2, since=mark)
        job.open("step.10")
        job.wait("gate", step=20, size=3)
        job.finish(0)
        job.verify(30, workers=3)
        self.assertEqual(job.find("hvdrun", text=containing("was fed")), [])


if __name__ == "__main__":
    main()
