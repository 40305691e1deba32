"""Workers that die, again and again or all at once, and what is answered (F1 to F3, F10 to F13)."""

from harness import Job, ScenarioTest, main

NO_RESTART = {"restart": "false"}


class Death(ScenarioTest):
    """F1: one of three dies in step 7, two steps after a commit; the others go on in the same processes."""

    def _death(self, action, rank):
        job = Job(self, "a:3", ["steps=15", "commit=5"], np=3, min_np=2, max_np=3, options=NO_RESTART,
                  faults="before_allreduce:*/*/%d/*/7/*=%s" % (rank, action))
        job.finish(0)
        job.verify(15, workers=2)
        self.assertEqual(job.generations(), [(1, 3), (2, 2)])
        self.assertEqual(len(job.find("start")), 3)
        victim = job.wait("fault")
        survivors = {e["pid"] for e in job.find("start")} - {victim["pid"]}
        self.assertEqual({e["pid"] for e in job.find("done")}, survivors)
        interrupted = job.find("interrupted", pid=lambda pid: pid != victim["pid"])
        self.assertEqual([e["status"] for e in interrupted], ["HVD_PEER_LOST"] * 2)
        # A survivor may hear that another gave the generation up before it hears why; nobody blames an
        # innocent.
        job.check({e["blamed"] for e in interrupted} <= {rank, -1}, "an innocent rank was blamed")
        self.assertEqual({(e["step"], e["rev"]) for e in job.find("train", gen=2)},
                         {(5, job.wait("commit", step=5)["rev"])})
        self.assertEqual(len(job.find("load", phase="restore", pid=lambda pid: pid != victim["pid"])), 2)
        self.assertEqual(job.find("load", phase="sync_load"), [], "survivors that agree exchange nothing")
        self.assertEqual([e["sync_bytes"] for e in job.find("recovery")], [0, 0])
        self.assertEqual(job.sizes(15), [3] * 5 + [2] * 10)

    def test_F1_error_of_the_first(self):
        self._death("error", 0)

    def test_F1_error_of_the_middle(self):
        self._death("error", 1)

    def test_F1_error_of_the_last(self):
        self._death("error", 2)

    def test_F1_sigkill_of_the_first(self):
        self._death("kill", 0)

    def test_F1_sigkill_of_the_middle(self):
        self._death("kill", 1)

    def test_F1_sigkill_of_the_last(self):
        self._death("kill", 2)

    def test_F1_sigsegv_of_the_first(self):
        self._death("segv", 0)

    def test_F1_sigsegv_of_the_middle(self):
        self._death("segv", 1)

    def test_F1_sigsegv_of_the_last(self):
        self._death("segv", 2)

    def test_F11_exit_0_without_a_word_is_a_departure(self):
        self._death("exit0", 1)


class SeveralDeaths(ScenarioTest):
    def _deaths(self, slots, min_np=1):
        # By slot: whoever learns of the first death before it gets there has another rank when it does.
        faults = ",".join("before_allreduce:*/%d/*/*/7/*=kill" % slot for slot in slots)
        return Job(self, "a:4", ["steps=15", "commit=5"], np=4, min_np=min_np, max_np=4,
                   options={**NO_RESTART, "elastic_timeout": 3}, faults=faults)

    def test_F2_two_of_four(self):
        job = self._deaths([1, 3])
        job.finish(0)
        job.verify(15, workers=2)
        self.assertEqual(job.generations()[-1][1], 2)
        self.assertEqual({e["slot"] for e in job.find("done")}, {0, 2})

    def test_F2_all_but_one(self):
        job = self._deaths([0, 1, 3])
        job.finish(0)
        job.verify(15, workers=1)
        self.assertEqual(job.generations()[-1][1], 1)

    def test_F2_all(self):
        job = self._deaths([0, 1, 2, 3])
        job.finish(76, sentence="all workers failed")
        self.assertEqual(job.find("done"), [])

    def test_F2_all_with_restart_never_begin_from_zero(self):
        job = Job(self, "a:2", ["steps=15", "commit=5"], np=2, min_np=1, max_np=2,
                  options={"elastic_timeout": 3},
                  faults="before_allreduce:*/0/*/*/7/1=kill,before_allreduce:*/1/*/*/7/1=kill")
        job.finish(1, sentence="all workers failed: no survivor holds state")
        self.assertEqual(job.find("train", gen=lambda g: g > 1, step=0), [])

    def test_F5_a_second_failure_while_recovering(self):
        for point in ("event_peer_lost", "interrupted", "restore", "reset"):
            with self.subTest(point=point):
                job = Job(self, "a:4", ["steps=15", "commit=5", "gate=9"], np=4, min_np=1, max_np=4,
                          options=NO_RESTART,
                          faults="before_allreduce:*/*/3/*/7/*=kill,%s:*/*/1/*/*/*=kill" % point)
                # Listeners are called in a thread of their own: training must not end before they are.
                job.wait("fault", count=2)
                job.finish(0)
                self.assertEqual(len(job.find("fault", action="kill")), 2)
                job.verify(15, workers=2)
                self.assertEqual(job.generations()[-1][1], 2)

    def test_F5_the_new_rank_0_dies_while_recovering(self):
        job = Job(self, "a:3", ["steps=15", "commit=5"], np=3, min_np=1, max_np=3, options=NO_RESTART,
                  faults="before_allreduce:*/*/0/*/7/*=kill,restore:*/*/1/*/*/*=kill")
        job.finish(0)
        job.verify(15, workers=1)


class Restart(ScenarioTest):
    def test_F1_the_slot_gets_a_new_worker(self):
        job = Job(self, "a:2", ["steps=30", "commit=1", "log=3", "gate=12"], np=2, min_np=1, max_np=2,
                  options={"restart_delay_min": 0.5}, faults="before_allreduce:*/*/1/*/7/1=kill")
        job.wait("start", **{"try": 2})
        if job.wait("gate", step=12)["size"] == 1:  # the new one was not there yet as the survivor went on
            job.wait_interrupt(1)
        job.open("step.12")
        job.finish(0)
        job.verify(30, workers=2)
        self.assertEqual(len(job.find("start")), 3)
        self.assertEqual(job.generations()[-1][1], 2)

    def test_F3_resets_have_a_limit(self):
        job = Job(self, "a:1,b:1", ["steps=1000", "commit=1"], np=2, min_np=2, max_np=2,
                  faults="after_allreduce:b/*/*/*/*/*=+kill", flags=["--reset-limit", "3"])
        job.finish(76, sentence="reset limit 3 exceeded")
        self.assertEqual(job.generations(), [(1, 2), (2, 2), (3, 2), (4, 2)])
        self.assertEqual([e["status"] for e in job.find("end", host="a")], ["HVD_JOB_FAILED"])

    def test_F3_back_off_grows_and_ends_on_the_blocklist(self):
        job = Job(self, "a:1,b:1", ["steps=10", "commit=1"], np=2, min_np=2, max_np=2,
                  faults="before_init:b/*/*/*/*/*=+kill",
                  options={"blocklist_after": 4, "restart_delay_min": 0.1, "restart_delay_max": 10,
                           "elastic_timeout": 3})
        job.finish(1, sentence="blocklist")
        starts, deaths = job.find("start", host="b"), job.find("fault", host="b")
        self.assertEqual(len(starts), 4)
        waits = [(start["t"] - death["t"]) / 1e9 for death, start in zip(deaths, starts[1:])]
        for number, waited in enumerate(waits):
            self.assertGreaterEqual(waited, 0.1 * 2 ** number, "delays %s" % waits)

    def test_F3_the_rest_goes_on_without_a_blocked_host(self):
        job = Job(self, "a:1,b:1", ["steps=30", "commit=1", "gate=20"], np=2, min_np=1, max_np=2,
                  faults="after_init:b/*/*/*/*/*=+kill", options={"blocklist_after": 2})
        job.wait("fault", host="b")
        job.wait("gate", step=20, size=1)
        job.wait("start", host="b", count=2)
        job.open("step.20")
        job.finish(0)
        job.verify(30, workers=1)
        self.assertLessEqual(len(job.find("start", host="b")), 2)


class Answers(ScenarioTest):
    def test_F10_the_newest_commit_wins_wherever_it_is(self):
        job = Job(self, "a:3", ["steps=15", "commit=5", "save=1@7"], np=3, min_np=2, max_np=3,
                  options=NO_RESTART, faults="before_allreduce:*/*/2/*/8/*=kill")
        job.finish(0)
        job.verify(15, workers=2)
        self.assertEqual({e["step"] for e in job.find("train", gen=2)}, {7})
        self.assertEqual(len(job.find("load", phase="sync_load")), 1, "rank 0 takes rank 1's")

    def test_F12_a_mismatch_is_an_answer(self):
        for kind in ("shape", "dtype", "op", "root"):
            with self.subTest(kind=kind):
                job = Job(self, "a:3",
                          ["steps=10", "commit=5", "mismatch=%s@7" % kind], np=3, min_np=3, max_np=3)
                job.finish(0)
                job.verify(10, workers=3)
                answers = job.find("mismatch")
                self.assertEqual([e["status"] for e in answers], ["HVD_MISMATCH"] * 3)
                self.assertEqual(len({e["msg"] for e in answers}), 1)
                self.assertIn("odd", answers[0]["msg"])
                self.assertRegex(answers[0]["msg"], "rank")
                self.assertEqual(job.find("interrupted"), [])
                self.assertEqual(job.generations(), [(1, 3)])

    def test_F13_not_enough_slots_in_time(self):
        job = Job(self, "a:2", ["steps=5"], np=4, min_np=4, max_np=4, options={"elastic_timeout": 1})
        job.finish(75, sentence=r"slots")

    def test_F13_below_the_minimum_for_good(self):
        job = Job(self, "a:2", ["steps=15", "commit=5"], np=2, min_np=2, max_np=2,
                  options={**NO_RESTART, "elastic_timeout": 5}, faults="before_allreduce:*/*/1/*/7/*=kill")
        job.finish(1, sentence=r"\d")
        ended = job.find("end")
        self.assertEqual([e["status"] for e in ended], ["HVD_JOB_FAILED"])
        kept = job.find("kept")
        self.assertEqual([(e["step"], e["sum"]) for e in kept], [(5, job.wait("commit", step=5)["sum"])])


if __name__ == "__main__":
    main()
