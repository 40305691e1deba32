"""Death at every point of a worker's life (F4). The others go on in the same processes."""

import signal

from harness import BACKEND, Job, ScenarioTest, containing, main

NO_RESTART = {"restart": "false"}


class Points(ScenarioTest):
    """While training: the victim is one of three, the two others go on from the last commit."""

    def _death(self, point, step, rank=1, action="kill"):
        job = Job(self, "a:3", ["steps=12", "commit=4"], np=3, min_np=2, max_np=3, options=NO_RESTART,
                  faults="%s:*/*/%d/*/%s/*=%s" % (point, rank, step, action))
        job.finish(0)
        self.assertEqual(len(job.find("fault")), 1)
        job.verify(12, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])
        self.assert_resumed(job)
        return job

    def assert_resumed(self, job):
        """Where the others go on is the newest commit that one of them has, and no other place."""
        dead = job.wait("fault")["worker"]
        newest = max([e["step"] for e in job.find("commit", gen=1) if e["worker"] != dead], default=0)
        self.assertEqual({e["step"] for e in job.find("train", gen=2)}, {newest})
        return newest

    def test_F4_in_a_collective(self):
        self._death("in_collective", 6)

    def test_F4_in_a_collective_rank_0(self):
        self._death("in_collective", 6, rank=0)

    def test_F4_between_two_collectives(self):
        self._death("between_collectives", 6)

    def test_F4_after_a_collective(self):
        self._death("after_allreduce", 6)

    # A commit copies on this host and waits for nobody. Who dies around one has what the step gives; the
    # others may be about to take it, and learn of the death instead: then they have the commit before. What
    # one of them has counts.

    def test_F4_before_commit(self):
        self._death("before_commit", 8)

    def test_F4_within_commit(self):
        self._death("save", 8)

    def test_F4_within_commit_rank_0(self):
        self._death("save", 8, rank=0)

    def test_F4_after_commit(self):
        self._death("after_commit", 8)

    def test_F4_after_everybodys_commit(self):
        job = Job(self, "a:3", ["steps=12", "commit=4"], np=3, min_np=2, max_np=3, options=NO_RESTART,
                  gates=["held"], faults="after_commit:*/*/1/*/8/*=gate(held)")
        job.wait("commit", step=8, count=3)
        job.send_signal(job.wait("fault"), signal.SIGKILL)
        job.finish(0)
        job.verify(12, workers=2)
        self.assertEqual(self.assert_resumed(job), 8)

    def test_F4_at_the_first_call(self):
        self._death("step_begin", 0)

    def test_F4_at_shutdown(self):
        job = Job(self, "a:3", ["steps=12", "commit=4"], np=3, min_np=1, max_np=3, options=NO_RESTART,
                  gates=["end"], faults="before_shutdown:*/*/1/*/*/*=gate(end)")
        # Not before all have what the last step gives: one that has not would go on alone from its last
        # commit.
        job.wait("done", count=3)
        job.send_signal(job.wait("fault"), signal.SIGKILL)
        job.finish(0)
        job.verify(12)
        self.assertEqual(len(job.find("shutdown", status="HVD_OK")), 2)

    def test_F4_after_shutdown(self):
        job = Job(self, "a:3", ["steps=12", "commit=4"], np=3, min_np=1, max_np=3, options=NO_RESTART,
                  faults="after_shutdown:*/*/1/*/*/*=kill")
        job.finish(0)
        job.verify(12, workers=3)


class RecoveryPoints(ScenarioTest):
    """While joining and recovering."""

    def _first_start(self, point):
        """A worker of the first generation dies before there is one: its slot gets another."""
        job = Job(self, "a:3", ["steps=12", "commit=4"], np=3, min_np=3, max_np=3,
                  faults="%s:a/1/*/*/*/1=kill" % point)
        job.finish(0)
        self.assertEqual(len(job.find("fault")), 1)
        job.verify(12, workers=3)
        self.assertEqual(len(job.find("start")), 4)
        return job

    def test_F4_before_registering(self):
        self._first_start("before_init")

    def test_F4_before_the_first_sync(self):
        self._first_start("after_init")

    def test_F4_in_the_first_sync(self):
        self._first_start("sync_save")

    def _second(self, point, workers):
        """Worker 2 of four dies in training, and then worker 1 at a point of the recovery."""
        job = Job(self, "a:4", ["steps=12", "commit=4", "gate=9"], np=4, min_np=1, max_np=4,
                  options=NO_RESTART, faults="before_allreduce:*/*/2/*/6/*=kill,%s=kill" % point)
        # Listeners are called in a thread of their own: training must not end before it has come to this.
        job.wait("fault", point=point.split(":")[0])
        job.finish(0)
        self.assertEqual(len(job.find("fault", action="kill")), 2)
        job.verify(12, workers=workers)
        self.assertEqual({e["step"] for e in job.find("train", gen=job.generations()[-1][0])}, {4})
        return job

    def test_F4_as_the_loss_is_known(self):
        self._second("event_peer_lost:*/*/1/*/*/*", 2)

    def test_F4_in_restore(self):
        self._second("restore:*/*/1/*/*/*", 2)

    def test_F4_in_the_reset_callback(self):
        self._second("reset:*/*/1/*/*/*", 2)

    def test_F4_in_the_reset_callback_rank_0(self):
        self._second("reset:*/*/0/*/*/*", 2)

    def test_F4_as_the_generation_is_announced(self):
        job = Job(self, "a:3,b:1", ["steps=12", "commit=4", "gate=9"], np=4, min_np=1, max_np=4,
                  options=NO_RESTART,
                  faults="before_allreduce:b/*/*/*/6/*=kill,event_generation:a/1/*/*/*/*=kill")
        job.wait("fault", point="event_generation")
        job.finish(0)
        job.verify(12, workers=2)

    def test_F4_while_forming(self):
        """Worker 1 is registered and waits for worker 0, who is held up in restore, when it dies."""
        job = Job(self, "a:3", ["steps=12", "commit=4", "log=2"], np=3, min_np=1, max_np=3,
                  options=NO_RESTART, gates=["hold"],
                  faults="before_allreduce:*/*/2/*/6/*=kill,restore:*/*/0/*/*/*=gate(hold)")
        job.wait("fault", action="gate(hold)")
        victim = job.wait("train", gen=1, rank=1)
        job.wait("load", phase="restore", pid=victim["pid"])
        job.send_signal(victim, 9)
        job.open("hold")
        job.finish(0)
        job.verify(12, workers=1)

    def test_F4_while_connecting(self):
        """A survivor dies as soon as the driver has given it its new place."""
        job = Job(self, "a:3", ["steps=12", "commit=4", "gate=9"], np=3, min_np=1, max_np=3,
                  options=NO_RESTART, faults="before_allreduce:*/*/2/*/6/*=kill")
        victim = job.wait("train", gen=1, rank=1)
        job.wait("hvdrun", text=containing("generation 2 formed"))
        job.send_signal(victim, 9)
        job.finish(0)
        job.verify(12, workers=1)
        self.assertEqual(job.wait("end", slot=0)["status"], "HVD_OK")

    def test_F4_before_the_digest_exchange(self):
        """A newcomer dies when it is connected and the others wait for its digests."""
        job = Job(self, "a:2", ["steps=20", "commit=2", "log=3", "gate=10", "gate=15"], np=2, min_np=2,
                  max_np=3, faults="after_init:b/*/*/*/*/1=kill")
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.wait_interrupt(2)
        job.open("step.10")
        job.wait("fault", action="kill")
        job.wait("gate", step=15)
        job.open("step.15")
        job.finish(0)
        job.verify(20)
        self.assertEqual(len(job.find("done", host="a")), 2)

    def test_F4_in_sync_as_receiver(self):
        """A newcomer dies while it loads the state of the others."""
        job = Job(self, "a:2", ["steps=20", "commit=2", "log=3", "gate=10", "gate=15"], np=2, min_np=2,
                  max_np=3, faults="sync_load:b/*/*/*/*/1=kill")
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.wait("start", host="b")
        job.wait_interrupt(2)
        job.open("step.10")
        job.wait("fault", action="kill")
        job.wait("start", host="b", count=2)
        job.wait("gate", step=15)
        job.open("step.15")
        job.finish(0)
        job.verify(20)
        self.assertEqual(len(job.find("done", host="a")), 2)

    def test_F4_as_live_values_are_saved_for_the_next_generation(self):
        """Rank 0, from whom the newcomer would take its state, dies before it has registered again."""
        job = Job(self, "a:2", ["steps=20", "commit=0", "check=1", "first=1", "log=3", "gate=10"], np=2,
                  min_np=1, max_np=3, options=NO_RESTART, faults="sync_save:a/*/0/*/11/*=kill")
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.wait_interrupt(2)
        job.open("step.10")
        job.finish(0)
        self.assertEqual(len(job.find("fault")), 1)
        job.verify(20, workers=2)
        self.assertEqual({e["host"] for e in job.find("done")}, {"a", "b"})

    def _killed_while_sending(self, rank):
        job = Job(self, "a:2", ["steps=20", "commit=2", "log=3", "pad=64000000", "gate=10", "gate=15"], np=2,
                  min_np=1, max_np=3, options={**NO_RESTART, "feed_timeout": 0})
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.wait_interrupt(2)
        source = job.wait("train", gen=1, rank=rank)
        job.open("step.10")
        job.wait("init", host="b")
        job.send_signal(source, 9)
        job.open("step.15")  # or all may be done before it is killed
        job.finish(0)
        job.verify(20, workers=2)
        self.assertEqual({e["host"] for e in job.find("done")}, {"a", "b"})

    def test_F4_in_sync_rank_0_is_killed(self):
        self._killed_while_sending(0)

    def test_F4_in_sync_another_holder_is_killed(self):
        self._killed_while_sending(1)


if __name__ == "__main__":
    main()
