"""A Slurm of a test's own: munged, slurmctld and a slurmd for each of two nodes, in one directory. The nodes
share this machine as it is, or are hosts "one" and "two" of a network (../network.py), where slurmctld is on
the first.

Nothing of the machine's own Slurm is used or changed. What it starts is ended by pid; tasks that are left are
known by the SLURM_CONF in their environment.
"""
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ports import free_ports  # noqa: E402

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

SBIN = "/usr/sbin"
NODES = ("one", "two")
CONFIGURATION = """
ClusterName=hvdtest
SlurmctldHost={hosts[0]}({addresses[0]})
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
TmpFS={directory}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=2
NodeName=one NodeHostname={hosts[0]} NodeAddr={addresses[0]} Port={ports[1]} CPUs=8
NodeName=two NodeHostname={hosts[1]} NodeAddr={addresses[1]} Port={ports[2]} CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Why there can be none here; "" if there can."""
    tools = [(name, shutil.which(name)) for name in ("srun", "sbatch", "scancel", "squeue")]
    tools += [(name, shutil.which(name, path=SBIN)) for name in ("munged", "slurmctld", "slurmd")]
    absent = [name for name, path in tools if not path]
    if absent:
        return "Slurm is not installed (no %s)" % ", ".join(absent)
    return "Slurm's daemons need root" if os.geteuid() != 0 else ""


class Slurm:
    def __init__(self, environment, network=None):
        self.network = network
        self.directory = tempfile.mkdtemp(prefix="hvd-slurm-")
        self.environment = environment | {"SLURM_CONF": self.directory + "/slurm.conf"}
        self.daemons = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        for name in ("state", "tmp-one", "tmp-two", "spool-one", "spool-two"):
            os.mkdir(os.path.join(self.directory, name))
        self._write("munge.key", os.urandom(1024), 0o400)
        here = socket.gethostname().split(".")[0]
        text = CONFIGURATION.format(
            directory=self.directory, ports=free_ports(3), hosts=NODES if self.network else (here, here),
            addresses=[self.network.address(n) for n in NODES] if self.network else ["127.0.0.1"] * 2)
        self._write("slurm.conf", text.encode(), 0o644)
        files = [
            argument for option, name in (("key-file", "munge.key"), ("socket", "munge.sock"), ("pid-file",
                                                                                                "munge.pid"),
                                          ("seed-file", "munge.seed"), ("log-file", "munge.log"))
            for argument in ("--" + option, os.path.join(self.directory, name))
        ]
        # /tmp may be writable to all: that is for munged to accept, since the key is this test's.
        self._daemon(["munged", "--foreground", "--force", "--num-threads", "2"] + files,
                     b"Created 2 work threads")
        self._daemon(["slurmctld", "-D"], b"Running as primary controller")
        self.nodes = {}
        for node in NODES:
            self.start_node(node)
        # Waits until both nodes have registered.
        status, out, err = self.run(["srun", "-N", "2", "true"])
        if status != 0:
            raise RuntimeError("no job can be run: %s %s\n%s" % (out, err, self.logs()))

    def start_node(self, node):
        self.nodes[node] = self._daemon(["slurmd", "-D", "-N", node], b"slurmd started on", node)

    def kill_node(self, node):
        """Ends all that Slurm runs on it, as a power failure would. Only with a network."""
        self.nodes[node].kill()
        self.nodes[node].wait()
        for pid, _ in self.tasks():
            if self.network.inside(node, pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def _write(self, name, content, mode):
        handle = os.open(os.path.join(self.directory, name), os.O_WRONLY | os.O_CREAT, mode)
        os.write(handle, content)
        os.close(handle)

    def _there(self, node):
        return self.network.enter(node) if self.network else []

    def _daemon(self, command, ready, node="one"):
        """Starts it and waits until it says that it is ready."""
        name = "%s-%d.out" % (command[0], len(self.daemons))
        end, log = os.pipe()
        daemon = subprocess.Popen(
            self._there(node) + [os.path.join(SBIN, command[0])] + command[1:], stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, env=self.environment, cwd=self.directory, start_new_session=True)
        os.close(log)
        self.daemons.append(daemon)
        said, deadline = b"", time.monotonic() + 20 * PATIENCE
        while ready not in said:
            if not select.select([end], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError("%s is not ready: %s" % (command[0], said.decode()))
            more = os.read(end, 65536)
            if not more:
                raise RuntimeError("%s has ended: %s" % (command[0], said.decode()))
            said += more
        # From here on to a file, by a process that ends with it.
        with open(os.path.join(self.directory, name), "wb") as file:
            file.write(said)
            file.flush()
            self.daemons.insert(0, subprocess.Popen(["cat"], stdin=end, stdout=file, start_new_session=True))
        os.close(end)
        return daemon

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.directory)):
            if name.endswith(".out"):
                with open(os.path.join(self.directory, name), errors="replace") as file:
                    text += "--- %s\n%s" % (name, "".join(file.readlines()[-20:]))
        return text

    def run(self, command, timeout=60, **variables):
        """(exit status, stdout, stderr) of srun, sbatch and the like; its job is over afterwards."""
        process = subprocess.Popen(
            self._there("one") + command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=self.environment | variables, cwd=self.directory,
            start_new_session=True)
        try:
            out, err = process.communicate(timeout=timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise RuntimeError("%s does not end: %s %s\n%s" % (command, out, err, self.logs()))
        return process.returncode, out, err

    def tasks(self):
        """(pid, command) of what runs under this Slurm and is not a daemon of it."""
        marker = ("SLURM_CONF=%s/slurm.conf\0" % self.directory).encode()
        daemons = {daemon.pid for daemon in self.daemons} | {os.getpid()}
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) in daemons:
                continue
            try:
                with open("/proc/%s/environ" % entry, "rb") as file:
                    if marker not in file.read() + b"\0":
                        continue
                with open("/proc/%s/stat" % entry) as file:
                    if int(file.read().rsplit(")", 1)[1].split()[1]) in daemons:
                        continue  # slurmctld has one that starts its scripts
                with open("/proc/%s/cmdline" % entry, "rb") as file:
                    found.append((int(entry), file.read().replace(b"\0", b" ").decode("utf-8", "replace")))
            except OSError:
                pass
        return found

    def close(self):
        """Ends everything; returns the tasks that had not ended by themselves."""
        deadline = time.monotonic() + 10 * PATIENCE
        left = self.tasks()
        for pid, _ in left:  # slurmstepd says goodbye
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            select.select([handle], [], [], max(0, deadline - time.monotonic()))
            os.close(handle)
        left = self.tasks()
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        return left
