"""hvdrun with torchrun's flags and variables."""

import os
import subprocess

from harness import BIN, Job, ScenarioTest, containing, main

HVDRUN = os.path.join(BIN, "hvdrun")


class Torchrun(ScenarioTest):
    """torchrun's flags and variables."""

    SHOW = [
        "--", "sh", "-c",
        'echo "at $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT"; exec "$@"', "sh"
    ]

    def places(self, job):
        """In the order of ranks; the port."""
        said = sorted(e["text"].split(" at ", 1)[1] for e in job.find("raw", text=containing(r"\] at ")))
        return [text.rsplit(" ", 1)[0] for text in said], {text.rsplit(" ", 1)[1] for text in said}

    def test_workers_see_what_torchrun_would_tell_them(self):
        job = Job(self, "a,b", ["steps=5"], script=False,
                  flags=["--nnodes", "2", "--nproc-per-node=2", *self.SHOW])
        job.finish(0)
        job.verify(5, workers=4)
        places, ports = self.places(job)
        self.assertEqual(places, ["%d 4 %d 2 127.0.0.1" % (i, i % 2) for i in range(4)])
        self.assertEqual(len(ports), 1)
        # They are what the workers became.
        for event in job.find("init"):
            self.assertIn("[%s:%d] at %d 4 " % (event["host"], event["slot"], event["rank"]),
                          "\n".join(e["text"] for e in job.find("raw")))

    def test_by_variables_and_with_an_address_of_ones_own(self):
        job = Job(self, "a,b", ["steps=20", "commit=1", "gate=10"], script=False,
                  environment={"PET_NNODES": "1:2", "PET_NPROC_PER_NODE": "1"},
                  flags=["--master_addr", "head", "--master_port", "1234",
                         *self.SHOW], faults="before_allreduce:*/0/1/*/7/1=kill")
        job.wait("start", **{"try": 2})
        job.finish(0)
        job.verify(20)
        places, ports = self.places(job)
        # The one that was started later has no rank of the first generation.
        self.assertEqual(places, ["  0 1 head", "0 2 0 1 head", "1 2 0 1 head"])
        self.assertEqual(ports, {"1234"})

    def test_without_the_flags_there_are_none(self):
        job = Job(self, "a:2", ["steps=5"], np=2, script=False, flags=self.SHOW)
        job.finish(0)
        self.assertEqual(self.places(job)[0], ["    ", "    "])

    def test_what_makes_no_sense_is_said(self):
        for flags, said in ((["--nnodes", "3:2"], "--nnodes '3:2': expected N or MIN:MAX"),
                            (["--nproc-per-node",
                              "all"], "--nproc-per-node 'all': expected a number, auto, gpu or cpu"),
                            (["--nnodes", "2"], "--nnodes of up to 2 and no hosts")):
            done = subprocess.run([HVDRUN, *flags, "true"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(said, done.stdout)


if __name__ == "__main__":
    main()
