"""Changes of hosts, and discovery that fails (H1 to H10)."""

from harness import Job, ScenarioTest, containing, main


class Hosts(ScenarioTest):
    def test_H1_hosts_are_added_and_then_replaced(self):
        job = Job(self, "a:2", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20"], np=2, min_np=2,
                  max_np=4)
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:2")
        job.wait("start", host="b", count=2)
        job.wait_interrupt(2)
        job.open("step.10")

        job.wait("gate", step=20, size=4)
        mark = job.mark()
        job.set_hosts("b:2")
        job.wait_interrupt(4, since=mark)
        job.open("step.20")
        job.finish(0)

        job.verify(30, workers=2)
        job.assert_no_step_twice()
        self.assertEqual([size for _, size in job.generations()], [2, 4, 2])
        last = job.generations()[-1][0]
        self.assertEqual([(e["host"], e["slot"]) for e in
                          sorted(job.find("train", gen=last), key=lambda e: e["rank"])], [("b", 0), ("b", 1)])
        self.assertEqual(len(job.find("start")), 4)
        job.check(len(job.find("end", host="a", status="HVD_REMOVED")) == 2, "two of host a were removed")
        self.assertEqual(job.sizes(30), [2] * 11 + [4] * 10 + [2] * 9)

    def test_H2_a_slot_is_added_and_a_slot_is_taken(self):
        job = Job(self, "a:2", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20"], np=2, min_np=1,
                  max_np=4)
        job.wait("gate", step=10)
        job.set_hosts("a:3")
        job.wait("start", slot=2)
        job.wait_interrupt(2)
        job.open("step.10")
        job.wait("gate", step=20, size=3)
        mark = job.mark()
        job.set_hosts("a:2")
        job.wait_interrupt(2, since=mark)
        job.open("step.20")
        job.finish(0)

        job.verify(30, workers=2)
        job.assert_no_step_twice()
        self.assertEqual([size for _, size in job.generations()], [2, 3, 2])
        self.assertEqual(len(job.find("start")), 3)
        self.assertEqual([e["slot"] for e in job.find("end", status="HVD_REMOVED")], [2])

    def test_H3_hosts_beyond_the_maximum_interrupt_nobody(self):
        job = Job(self, "a:2", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20"], np=2, min_np=1,
                  max_np=2)
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:4")
        job.open("step.10")
        job.wait("gate", step=20)
        job.set_hosts("a:2")
        job.open("step.20")
        job.finish(0)

        job.verify(30, workers=2)
        self.assertEqual([size for _, size in job.generations()], [2])
        self.assertEqual(job.find("interrupted"), [])
        self.assertEqual(len(job.find("start")), 2)

    def test_H4_rolling_replacement(self):
        job = Job(self, "a:1,b:1", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20"], np=2, min_np=2,
                  max_np=2)
        job.wait("gate", step=10)
        job.set_hosts("b:1,c:1")
        job.wait_interrupt(1, host="b")
        job.open("step.10")
        job.wait("gate", step=20, gen=lambda g: g > 1)
        mark = job.mark()
        job.set_hosts("c:1,d:1")
        job.wait_interrupt(1, since=mark, host="c")
        job.open("step.20")
        job.finish(0)

        job.verify(30, workers=2)
        job.assert_no_step_twice()
        self.assertEqual({e["host"] for e in job.find("done")}, {"c", "d"})

    def test_H5_nothing_in_common_hands_over_or_refuses(self):
        job = Job(self, "a:1,b:1", ["steps=30", "commit=1", "log=3", "gate=10", "gate=20", "gate=28"], np=2,
                  min_np=2, max_np=2, options={"elastic_timeout": 10})
        job.wait("gate", step=10)
        job.set_hosts("c:1,d:1")
        job.wait("event_hosts_updated", host="a")  # else the rest may be trained before the driver looks
        job.open("step.10")
        for step in (20, 28):  # on a busy machine the new ones come late
            gate = job.wait("gate", step=step)
            if gate["gen"] == 1:
                job.wait_interrupt(2)
            elif gate["size"] > 2:  # the one that hands over is there still, and goes at the next commit
                job.wait("event_hosts_updated", gen=gate["gen"], count=3)
            job.open("step.%d" % step)
        code = job.process.wait(40)
        if code == 0:  # handed over
            job.finish(0)
            job.verify(30, workers=2)
            job.assert_no_step_twice()
            self.assertEqual({e["host"] for e in job.find("done")}, {"c", "d"})
        else:  # refused in a sentence; nobody began from zero
            job.finish(1, sentence="state|survivor")
            self.assertEqual(job.find("done"), [])
        self.assertEqual(job.find("train", gen=lambda g: g > 1, step=0), [])

    def test_H6_two_changes_within_a_second_are_two(self):
        job = Job(self, "a:1", ["steps=20", "commit=1", "log=3", "gate=10"], np=1, min_np=1, max_np=8,
                  gates=["join"],
                  faults="before_init:b/0/*/*/*/*=gate(join),before_init:c/0/*/*/*/*=gate(join)")
        job.wait("gate", step=10)
        job.set_hosts("a:1,b:1")
        job.set_hosts("a:1,b:1,c:1")
        first = job.wait("event_hosts_updated", host="a", count=1)
        second = job.wait("event_hosts_updated", host="a", count=2)
        self.assertEqual(second["epoch"], first["epoch"] + 1)
        job.wait("fault", host="b")
        job.wait("fault", host="c")
        job.open("join")
        job.wait_interrupt(1, host="a")
        job.open("step.10")
        job.finish(0)
        job.verify(20, workers=3)
        job.assert_no_step_twice()
        self.assertEqual([size for _, size in job.generations()], [1, 3])

    def test_H6_a_change_that_is_undone_interrupts_nobody(self):
        job = Job(self, "a:2", ["steps=20", "commit=1", "log=3", "gate=10"], np=2, min_np=1, max_np=8)
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.set_hosts("a:2")
        job.open("step.10")
        job.finish(0)
        job.verify(20, workers=2)
        self.assertEqual(job.find("interrupted"), [])
        self.assertEqual([size for _, size in job.generations()], [2])

    def test_H7_fewer_than_the_minimum_and_then_a_new_host(self):
        job = Job(self, "a:1,b:1", ["steps=20", "commit=1", "log=3", "gate=10", "gate=15"], np=2, min_np=2,
                  max_np=2)
        job.wait("gate", step=10)
        job.set_hosts("a:1")
        job.open("step.10")
        job.wait("gate", step=15)  # with b, who is needed until there is another
        job.set_hosts("a:1,c:1")
        job.wait_interrupt(1, host="a")
        job.open("step.15")
        job.finish(0)
        job.verify(20, workers=2)
        job.assert_no_step_twice()
        self.assertEqual({e["host"] for e in job.find("done")}, {"a", "c"})
        self.assertEqual(job.find("step", size=1), [])

    def test_H8_a_host_arrives_while_a_generation_is_forming(self):
        job = Job(self, "a:3", ["steps=20", "commit=5", "log=3", "gate=12"], np=3, min_np=1, max_np=8,
                  faults="step_begin:*/*/2/*/7/*=kill,interrupted:*/*/1/*/*/*=gate(hold)", gates=["hold"],
                  options={"restart": "false"})
        job.wait("fault", action="gate(hold)")
        job.wait("fault", action="kill")
        job.set_hosts("a:3,b:1")
        job.wait("start", host="b")
        job.open("hold")
        if job.wait("gate", step=12)["size"] == 2:  # it takes its time: with the next generation
            job.wait_interrupt(2)
        job.finish(0)
        done = job.verify(20)
        self.assertEqual({e["host"] for e in done}, {"a", "b"})

    def test_H10_check_without_commit_keeps_live_values(self):
        job = Job(self, "a:2", ["steps=20", "commit=0", "check=1", "first=1", "log=3", "gate=10"], np=2,
                  min_np=1, max_np=4)
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.wait("start", host="b")
        job.wait_interrupt(2)
        job.open("step.10")
        job.finish(0)
        job.verify(20, workers=3)
        job.assert_no_step_twice()
        self.assertEqual({e["step"] for e in job.find("interrupted")}, {11})
        self.assertEqual({e["step"] for e in job.find("train", size=3)}, {11})


class Discovery(ScenarioTest):
    def test_H9_failure_at_the_start_is_fatal(self):
        job = Job(self, "", ["steps=5"], np=1, discover="exit 3\n")
        job.finish(2, sentence="discover") if job.process.wait(20) == 2 else job.finish(
            1, sentence="discover")
        self.assertEqual(job.find("start"), [])

    def _later(self, commands, runs=3, options=None):
        job = Job(self, "a:2", ["steps=20", "commit=1", "log=3", "gate=5", "gate=10"], np=2, min_np=1,
                  max_np=4, options=options)
        job.wait("gate", step=5)
        job.set_discovery(commands, runs)
        job.wait("hvdrun", text=containing("discover"))
        job.open("step.5")  # training goes on meanwhile
        job.wait("gate", step=10)
        job.set_hosts("a:3")
        job.wait_interrupt(2)
        job.open("step.10")
        job.finish(0)
        job.verify(20, workers=3)
        job.assert_no_step_twice()
        self.assertEqual(job.find("step", size=1), [])

    def test_H9_failure_later_is_retried(self):
        self._later("exit 3\n")

    def test_H9_rubbish_is_not_taken_for_hosts(self):
        self._later("echo 'a:2:7 ;;; a:-1 %$'\n")

    def test_H9_a_discovery_that_hangs_blocks_nothing(self):
        self._later("exec sleep 1000\n", runs=2, options={"discovery_timeout": 0.3})


if __name__ == "__main__":
    main()
