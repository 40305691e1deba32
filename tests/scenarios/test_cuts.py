"""A host behind an agent whose network is cut, in both directions or in one, and mended (F8)."""

from harness import AGENTS, PATIENCE, Job, ScenarioTest, main


class Cuts(ScenarioTest):
    @classmethod
    def setUpClass(cls):
        if not AGENTS:
            raise AssertionError("expected HVD_TEST_AGENTS")
        super().setUpClass()

    def broken(self, harm, cure):
        job = Job(
            self, "a:1,b:1,c:1", ["steps=40", "commit=1", "log=3", "gate=10", "gate=20", "gate=30"], np=3,
            min_np=2, max_np=3, environment={"HVD_DRIVER_TIMEOUT": "%g" % (3 * PATIENCE)},
            options={"heartbeat_timeout": 2 * PATIENCE, "stop_grace": 1, "connect_timeout": 5 * PATIENCE})
        self.addCleanup(cure, "b")
        job.wait("gate", step=10)
        lost = job.wait("train", host="b")
        harm("b")
        job.open("step.10")
        job.wait("gate", step=20, size=2, timeout=40)
        cure("b")
        mark = job.mark()
        job.open("step.20")
        job.wait("start", host="b", count=2, timeout=60)
        if job.wait("gate", step=30)["size"] == 2:  # the new one comes too late for that step
            job.wait_interrupt(2, since=mark, timeout=40)
        job.finish(0, timeout=60)
        job.verify(40, workers=3)
        self.assertEqual(job.generations()[-1][1], 3)
        self.assertEqual({e["host"] for e in job.find("done")}, {"a", "b", "c"})
        # There was one job alone: what was cut off made no step, and is not in it any more.
        self.assertNotIn(lost["pid"], {e["pid"] for e in job.find("done")})
        self.assertEqual([e["step"] for e in job.find("step", pid=lost["pid"]) if e["step"] > 11], [])
        self.assertEqual(len(job.find("start", host="a") + job.find("start", host="c")), 2)

    def test_F8_a_host_is_cut_off(self):
        self.broken(self.network.cut, self.network.mend)

    def test_F8_a_host_is_not_heard(self):
        self.broken(self.network.mute, self.network.cure)

    def test_F8_a_host_hears_nothing(self):
        self.broken(self.network.deafen, self.network.cure)


if __name__ == "__main__":
    main()
