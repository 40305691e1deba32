"""The files of examples/deploy are what their platforms take; what a linter is missing for is skipped, and
says so."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DEPLOY = os.path.join(ROOT, "examples", "deploy")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                          check=False)
    return done.returncode, done.stdout


def text_of(*path):
    with open(os.path.join(DEPLOY, *path)) as file:
        return file.read()


class Deploy(unittest.TestCase):
    def validate(self, path, documents):
        if importlib.util.find_spec("kubernetes_validate") is None:
            self.skipTest("kubernetes-validate is not installed")
        program = [sys.executable, "-m", "kubernetes_validate"]
        script = shutil.which("kubernetes-validate",
                              path=os.path.dirname(sys.executable) + ":" + os.environ["PATH"])
        if script:
            program = [script]
        status, said = run(*program, "--strict", path)
        self.assertEqual(status, 0, said)
        self.assertEqual(said.count("passed"), documents, said)

    def test_kubernetes(self):
        self.validate(os.path.join(DEPLOY, "kubernetes", "job.yaml"), 4)

    def test_jobset(self):
        """Its schema is no part of Kubernetes: what is linted is the jobs that it makes, and the names that
        they count on."""
        if importlib.util.find_spec("yaml") is None:
            self.skipTest("PyYAML is not installed")
        import yaml
        whole = yaml.safe_load(text_of("kubernetes", "jobset.yaml"))
        self.assertEqual((whole["apiVersion"], whole["kind"]), ("jobset.x-k8s.io/v1alpha2", "JobSet"))
        self.assertLessEqual(set(whole["spec"]),
                             {"network", "successPolicy", "failurePolicy", "replicatedJobs"})
        jobs = {job["name"]: job for job in whole["spec"]["replicatedJobs"]}
        self.assertEqual(set(jobs), {"driver", "worker"})
        self.assertLessEqual(set(whole["spec"]["successPolicy"]["targetReplicatedJobs"]), set(jobs))
        variables = {v["name"]: v.get("value") for v in
                     jobs["worker"]["template"]["spec"]["template"]["spec"]["containers"][0]["env"]}
        self.assertEqual(variables["HVD_DRIVER"],
                         "%s-driver-0-0.%s:7300" % ((whole["metadata"]["name"], ) * 2))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump_all(
                [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, **job["template"]}
                 for name, job in jobs.items()], file)
            file.flush()
            self.validate(file.name, 2)

    def test_options_and_variables_are_the_library_s(self):
        with open(os.path.join(ROOT, "docs", "options.md")) as file:
            known = set(re.findall(r"`(HVD_[A-Z_]+)`",
                                   file.read())) | {"HVD_DRIVER_ADDRESS", "HVD_AGENT_SLOTS"}
        for folder, _, files in os.walk(DEPLOY):
            for name in files:
                used = set(re.findall(r"\bHVD_[A-Z_]+\b", text_of(os.path.join(folder, name))))
                self.assertEqual(used - known, set(), name)

    def test_slurm_s_script_is_one(self):
        for name in ("train.sbatch", "standby.sbatch"):
            status, said = run("bash", "-n", os.path.join(DEPLOY, "slurm", name))
            self.assertEqual(status, 0, said)

    def test_systemd(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not installed")
        for name in ("hvd-agent.service", "hvd-driver.service", "hvd-notice@.service"):
            _, said = run("systemd-analyze", "verify", "--man=no", os.path.join(DEPLOY, "systemd", name))
            # The programs need not be installed where the test runs.
            wrong = [line for line in said.splitlines() if name.partition(".")[0].partition("@")[0] in line
                     and "is not executable" not in line]
            self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
