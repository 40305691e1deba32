"""Jobs whose driver starts nobody, and whose agents are started by hand on this machine."""

import os
import re
import shutil
import subprocess
import tempfile

from harness import BIN, PATIENCE, Job, ScenarioTest, containing

HVDRUN = os.path.join(BIN, "hvdrun")


class ByHand(ScenarioTest):
    def setUp(self):
        super().setUp()
        self.secret = os.path.join("/tmp", "hvd-secret-%d" % os.getpid())
        with open(self.secret, "w") as file:
            file.write("x" * 40 + "\n")
        os.chmod(self.secret, 0o600)
        self.addCleanup(os.unlink, self.secret)

    def job(self, worker, **more):
        job = Job(self, None, worker, script=False, environment={"HVD_SECRET_FILE": self.secret},
                  prepare=lambda job: [HVDRUN, "--driver", "--listen", "127.0.0.1"], **more)
        at = job.wait("hvdrun", text=containing(r"listens at"))["text"]
        job.address = re.search(r"listens at (\S+),", at).group(1)
        return job

    def agent(self, job, host, slots=1, secret=None, flags=(), command=(), address=None, before=()):
        own = ["--", *command] if command else []
        line = [*before, HVDRUN, "--join", address or job.address, "--host", host, "--slots", str(slots),
                "--secret-file", secret or self.secret, *flags, *own]
        agent = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True,
                                 env={"PATH": os.environ["PATH"], "OWN": "yes"})

        def end():
            if agent.poll() is None:
                agent.kill()
            agent.communicate()
        self.addCleanup(end)
        return agent

    def said(self, agent, status):
        text = agent.communicate(timeout=30 * PATIENCE)[1]
        self.assertEqual(agent.returncode, status, text)
        return text

    def one_generation(self, job, steps, workers):
        job.verify(steps, workers=workers)
        job.check(job.generations() == [(1, workers)], "generations and sizes: %s" % job.generations())
        self.assertEqual(len(job.find("start")), workers)
        job.assert_no_step_twice()

    def printing(self, lines, **options):
        """A worker that is no worker: prints while the driver does not listen."""
        place = tempfile.mkdtemp(prefix="hvd-spool-")
        self.addCleanup(shutil.rmtree, place)
        for name in ("go", "printed"):
            os.mkfifo(os.path.join(place, name))
        script = (
            "echo begin; read line < %s/go; seq -f %%01000.0f %d; echo done > %s/printed; read line < %s/go; echo end; exec sleep 1000"
            % (place, lines, place, place))
        job = self.job([], np=1, options={
            "restart": "false", "heartbeat_timeout": 300, "start_timeout": 300, "elastic_timeout": 300,
            **options
        }, flags=["--", "sh", "-c", script])
        return place, job

    @staticmethod
    def write(path, text="x\n"):
        with open(path, "w") as fifo:
            fifo.write(text)
