"""The files in examples/deploy/kubernetes as a kubelet would run them: their commands, variables, secret and
names, in namespaces.

A pod is a process on a host of its own (../network.py) with the secret where the file mounts it; the Service
is a host name.
"""

import os
import subprocess
import sys
import tempfile
import unittest

from harness import BIN, PATIENCE, WORKER_ENVIRONMENT, main
from test_arrivals import SECRET, Lines

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from network import Network  # noqa: E402

FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "deploy",
                     "kubernetes")
try:
    import yaml
except ImportError:
    yaml = None


class Kubernetes(unittest.TestCase):
    FILE, DRIVER = "job.yaml", "train-driver"

    def jobs(self, parts):
        """The specifications of the jobs "train-driver" and "train"."""
        return {part["metadata"]["name"]: part["spec"] for part in parts if part["kind"] == "Job"}

    def pods(self, count):
        return ["train-%d-x" % index for index in range(count)]

    def setUp(self):
        if yaml is None:
            self.skipTest("PyYAML is not installed")
        directory = tempfile.TemporaryDirectory(prefix="hvd-kubernetes-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        with open(os.path.join(FILES, self.FILE)) as file:
            self.parts = self.jobs(list(yaml.safe_load_all(file)))
        self.journal = os.path.join(self.directory, "journal")
        os.mkdir(self.journal)
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("HVD_") or name == "HVD_PLUGIN_PATH"}

    def hosts(self, names):
        """Hosts with the secret's volume, as the file says."""
        network = Network(self.addCleanup, self.directory, names, (4,))
        for name in names:
            spec = self.parts["train-driver" if name == self.DRIVER else "train"]["template"]["spec"]
            mount, volume = spec["containers"][0]["volumeMounts"][0], spec["volumes"][0]
            self.assertEqual(mount["name"], volume["name"])
            # /etc of the image: the machine's, with the volume and the names of this network.
            layer = os.path.join(self.directory, name, "etc")
            place = layer + mount["mountPath"].removeprefix("/etc")
            os.makedirs(place)
            with open(os.path.join(self.directory, "hosts")) as table, open(layer + "/hosts", "w") as copy:
                copy.write(table.read())
            with open(place + "/secret", "w") as file:
                file.write(SECRET)
            os.chmod(place + "/secret", volume["secret"]["defaultMode"])
            done = subprocess.run(
                network.enter(name) +
                ["mount", "-t", "overlay", "-o",
                 "lowerdir=%s:/etc" % layer, "overlay", "/etc"], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                self.skipTest("several hosts need overlay file systems: %s" % done.stdout)
        return network

    def container(self, job, name):
        """(command, variables) of a pod of that name."""
        container = self.parts[job]["template"]["spec"]["containers"][0]
        variables = {}
        for variable in container.get("env", []):
            given = variable.get("value")
            if given is None:
                self.assertEqual(variable["valueFrom"], {"fieldRef": {"fieldPath": "metadata.name"}})
                given = name
            variables[variable["name"]] = given
        return container, variables

    def run_pod(self, job, name, *arguments, **more):
        container, variables = self.container(job, name)
        command = list(container["command"])
        # The image has hvdrun in PATH; its program is this test's.
        command[0] = os.path.join(BIN, "scenario_worker" if command[0] == "/app/train" else command[0])
        # The claim's volume is a directory of this test.
        for mount in container["volumeMounts"]:
            if mount["name"] == "journal":
                command = [
                    word.replace(mount["mountPath"], self.journal, 1)
                    if word.startswith(mount["mountPath"]) else word for word in command
                ]
        return Lines(
            self,
            self.network.enter(name) + command + list(arguments),
            {**self.environment, **WORKER_ENVIRONMENT, "HVD_TEST_DIR": self.directory, **variables, **more})

    def test_a_job_with_an_eviction_and_a_pod_that_dies(self):
        names = self.pods(self.parts["train"]["parallelism"])
        self.network = self.hosts([self.DRIVER, *names])
        steps = ["steps=1000000", "until=enough", "commit=1", "pace=5", "log=3"]
        # Pods come in any order: these look for a driver that is not there yet.
        pods = {name: self.run_pod("train", name, *steps) for name in names}
        driver = self.run_pod("train-driver", self.DRIVER, "--verbose")
        driver.wait("listens at")
        probe = self.container("train-driver", self.DRIVER)[0]["readinessProbe"]["tcpSocket"]["port"]
        subprocess.run(
            self.network.enter(self.DRIVER) + [
                sys.executable, "-c",
                "import socket; socket.create_connection(('%s', %d))" % (self.DRIVER, probe)
            ], check=True, timeout=30 * PATIENCE)
        for pod in pods.values():
            pod.wait('"ev":"train".*"size":4')

        # A pod dies: the Job controller puts another in its place.
        pods[names[1]].process.kill()
        pods[names[1]].finish()
        pods[names[0]].wait('"ev":"train".*"size":3')
        pods[names[1]] = again = self.run_pod("train", names[1], *steps)
        again.wait('"ev":"train".*"size":4')

        # The driver's pod dies: another takes the job over from the journal, and nobody repeats a step.
        driver.process.kill()
        driver.finish()
        driver = self.run_pod("train-driver", self.DRIVER, "--verbose")
        driver.wait("taken over after")

        # A pod is evicted: preStop runs in it, with its variables, before it would get SIGTERM.
        container, variables = self.container("train", names[2])
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(hook[:2], ["sh", "-c"])
        text = hook[2].replace("--pid=1 ", "--pid=%d " % pods[names[2]].process.pid)  # PID 1 of the container
        self.assertNotEqual(text, hook[2])
        ending = Lines(self, self.network.enter(names[2]) + ["sh", "-c", text],
                       {**self.environment, **variables, "PATH": BIN + ":" + os.environ["PATH"]})
        ending.wait("host %s is drained" % names[2])
        self.assertEqual(pods[names[2]].finish(), 0)
        self.assertEqual(ending.finish(), 0)
        left = pods.pop(names[2])
        self.assertTrue(left.events("left"), left.lines)

        open(os.path.join(self.directory, "enough"), "w").close()
        for pod in pods.values():
            self.assertEqual(pod.finish(), 0, pod.lines)
        self.assertEqual(driver.finish(), 0, driver.lines)
        done = [event for pod in pods.values() for event in pod.events("done")]
        self.assertEqual(len({event["step"] for event in done}), 1)
        self.assertEqual(len({event["sum"] for event in done}), 1)
        # Who was evicted cost no step: the only ones that were repeated are those of the pod that died.
        lost = [event for event in pods[names[0]].events("interrupted") if event["status"] == "HVD_PEER_LOST"]
        self.assertEqual(len(lost), 1)


class JobSet(Kubernetes):
    """Pods are <jobset>-<job>-<index of the job>-<index>, and are looked up by that name below the jobset's.
    """
    FILE, DRIVER = "jobset.yaml", "train-driver-0-0.train"

    def jobs(self, parts):
        (jobset,) = parts
        self.assertEqual(jobset["metadata"]["name"], "train")
        self.assertTrue(jobset["spec"]["network"]["enableDNSHostnames"])
        specifications = {job["name"]: job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]}
        return {"train-driver": specifications["driver"], "train": specifications["worker"]}

    def pods(self, count):
        return ["train-worker-0-%d" % index for index in range(count)]


if __name__ == "__main__":
    main()
