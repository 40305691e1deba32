"""Several hosts on this machine: each has a network, a name and a /dev/shm of its own, and knows the others'
names.

They are namespaces that live as long as a process of this test holds them: nothing has to be removed, and
nothing is left however the test ends. Address of the i-th host (from 1): 10.77.0.i and fd77::i, by eth0, on
one bridge.
"""

import os
import shutil
import subprocess
import unittest

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=20 * PATIENCE)
    if done.returncode != 0:
        raise RuntimeError("%s: %s" % (" ".join(command), done.stdout))


class Holder:
    """A process whose namespaces are used by others. It ends with the test."""

    def __init__(self, flags, script=""):
        self.process = subprocess.Popen(
            ["unshare"] + flags + ["sh", "-ec", script + "\necho ready\nexec cat"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pid = self.process.pid
        said = self.process.stdout.readline()
        if said != "ready\n":
            said += self.process.communicate(timeout=20 * PATIENCE)[0]
            raise RuntimeError("unshare %s: %s" % (" ".join(flags), said))

    def close(self):
        self.process.communicate(timeout=20 * PATIENCE)


class Network:
    def __init__(self, add_cleanup, directory, names, versions=(4, 6)):
        """Skips the test where there can be none. add_cleanup: the test's addCleanup or the like; versions:
        of IP."""
        self.add_cleanup = add_cleanup
        self.directory = directory
        self.names = list(names)
        self.versions = versions
        self.hosts = {}
        absent = [tool for tool in ("ip", "unshare", "nsenter") if not shutil.which(tool)]
        if os.geteuid() != 0 or absent:
            raise unittest.SkipTest("several hosts need root, ip, unshare and nsenter")
        try:
            self._build()
        except (RuntimeError, OSError) as error:
            raise unittest.SkipTest("several hosts need network namespaces and a bridge: %s" % error)

    def _hold(self, flags, script=""):
        holder = Holder(flags, script)
        self.add_cleanup(holder.close)
        return holder

    def _build(self):
        table = os.path.join(self.directory, "hosts")
        with open(table, "w") as file:
            file.write("127.0.0.1 localhost\n::1 localhost\n")
            for name in self.names:
                file.write("%s %s\n" % (self.address(name), name))
        self.switch = self._hold(["--net"])
        run(*self._in(self.switch), "ip", "link", "add", "bridge", "type", "bridge")
        run(*self._in(self.switch), "ip", "link", "set", "bridge", "up")
        for name in self.names:
            host = self._hold(["--net", "--uts", "--ipc", "--mount", "--propagation", "private"],
                              "hostname %s; mount --bind '%s' /etc/hosts; mount -t tmpfs tmpfs /dev/shm" %
                              (name, table))
            self.hosts[name] = host
            os.mkdir(os.path.join(self.directory, name))
            run("ip", "link", "add", "name", self._port(name), "netns", str(self.switch.pid), "type", "veth",
                "peer", "name", "eth0", "netns", str(host.pid))
            run(*self._in(self.switch), "ip", "link", "set", self._port(name), "master", "bridge", "up")
            for device in ("lo", "eth0"):
                run(*self._in(host), "ip", "link", "set", device, "up")
            for version in self.versions:
                run(*self._in(host), "ip", "address", "add",
                    self.address(name, version) + ("/24" if version == 4 else "/64"), "dev", "eth0",
                    *(["nodad"] if version == 6 else []))

    def _port(self, name):
        return "port%d" % (self.names.index(name) + 1)

    @staticmethod
    def _in(holder):
        return ["nsenter", "--target", str(holder.pid), "--net"]

    def address(self, name, version=None):
        """By default what the host's name stands for."""
        return ("10.77.0.%d" if
                (version or self.versions[0]) == 4 else "fd77::%d") % (self.names.index(name) + 1)

    def enter(self, name):
        """What to put before a command that is to run there. Its temporary directory is the host's own."""
        return ["nsenter", "--target", str(self.hosts[name].pid), "--net", "--uts", "--ipc", "--mount",
                "env", "TMPDIR=" + os.path.join(self.directory, name)]

    def _script(self, name, lines):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + lines)
        os.chmod(path, 0o755)
        return path

    def starter(self):
        """A program with arguments HOST COMMAND... that runs the command there, in the environment it has
        itself."""
        cases = "".join("%s) exec %s \"$@\";;\n" % (name, " ".join(self.enter(name))) for name in self.names)
        return self._script("start",
                            "host=$1\nshift\ncase $host in\n%sesac\necho no host $host >&2\nexit 1\n" % cases)

    def remote_shell(self):
        """The same as ssh would: a line for the shell there, in an environment of its own; options are passed
        over."""
        cases = ""
        for name in self.names:
            own = "env -i HOME=\"$HOME\" PATH=\"$PATH\" TMPDIR=" + os.path.join(self.directory, name)
            cases += "%s|%s) exec %s %s sh -c \"$*\";;\n" % (
                name, self.address(name), " ".join(self.enter(name)), own)
        return self._script("shell", "while [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
                            "host=$1\nshift\ncase $host in\n%sesac\necho no host $host >&2\nexit 1\n" % cases)

    def inside(self, name, pid):
        """Is this process there?"""
        try:
            return os.readlink("/proc/%d/ns/net" % pid) == os.readlink("/proc/%d/ns/net" %
                                                                       self.hosts[name].pid)
        except OSError:
            return False

    def leave_loopback(self, name):
        """Takes the host's only other interface away."""
        run(*self._in(self.hosts[name]), "ip", "link", "set", "eth0", "down")

    def cut(self, name):
        """Pulls the host's cable: nobody is told."""
        run(*self._in(self.switch), "ip", "link", "set", self._port(name), "down")

    def mend(self, name):
        run(*self._in(self.switch), "ip", "link", "set", self._port(name), "up")

    # A queue without room drops whatever is to leave by it.

    def mute(self, name):
        """What the host sends is lost; what is sent to it arrives."""
        run(*self._in(self.hosts[name]), "tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo", "limit",
            "0")

    def deafen(self, name):
        """What is sent to the host is lost; what it sends arrives."""
        run(*self._in(self.switch), "tc", "qdisc", "replace", "dev", self._port(name), "root", "pfifo",
            "limit", "0")

    def cure(self, name):
        """It hears and is heard again."""
        for holder, device in ((self.hosts[name], "eth0"), (self.switch, self._port(name))):
            subprocess.run([*self._in(holder), "tc", "qdisc", "delete", "dev", device, "root"],
                           stderr=subprocess.DEVNULL)
