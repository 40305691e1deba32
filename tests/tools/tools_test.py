"""hvd-notice and the discovery programs, each against a fake of its source on loopback."""

import datetime
import email.utils
import http.server
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

TOOLS = os.environ.get("HVD_TOOLS") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                                                    "tools")


class Fake:
    """A metadata service: answers(path, headers, method) gives a text, or None for 404."""

    def __init__(self, test, answers):
        outer = self
        self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def respond(self):
                outer.asked.append((self.command, self.path))
                text = answers(self.path, self.headers, self.command)
                self.send_response(404 if text is None else 401 if text is PermissionError else 200)
                body = text.encode() if isinstance(text, str) else b""
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = respond

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        test.addCleanup(lambda: (self.server.shutdown(), thread.join(), self.server.server_close()))


def tool(name, *arguments, timeout=60, **environment):
    done = subprocess.run([sys.executable, os.path.join(TOOLS, name), *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout,
                          env={**os.environ, **environment}, check=False)
    return done.returncode, done.stdout, done.stderr


SHOW = ["--", sys.executable, "-c", "import os; print(os.environ['HVD_NOTICE_SECONDS'])"]


def notice(cloud, fake, *arguments, **options):
    return tool("hvd-notice", cloud, "--metadata", fake.url, "--interval", "0.05", *arguments,
                http_proxy="http://127.0.0.1:9", **options)


class Notice(unittest.TestCase):
    def test_aws_asks_with_a_token_until_there_is_an_action(self):
        at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=120)
        looks = []

        def answers(path, headers, method):
            if path == "/latest/api/token":
                self.assertEqual(method, "PUT")
                self.assertEqual(headers["X-aws-ec2-metadata-token-ttl-seconds"], "21600")
                return "token"
            self.assertEqual(headers["X-aws-ec2-metadata-token"], "token")
            looks.append(path)
            if len(looks) < 3:
                return None
            return json.dumps({"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")})

        status, out, err = notice("aws", Fake(self, answers), *SHOW)
        self.assertEqual(status, 0, err)
        self.assertEqual(looks, ["/latest/meta-data/spot/instance-action"] * 3)
        self.assertTrue(1 <= int(out) <= 118, out)
        self.assertIn("EC2 will terminate", err)

    def test_aws_gets_another_token_when_its_own_is_refused(self):
        tokens = []

        def answers(path, headers, _):
            if path == "/latest/api/token":
                tokens.append(path)
                return "token%d" % len(tokens)
            if headers["X-aws-ec2-metadata-token"] == "token1":
                return PermissionError
            return json.dumps({"action": "stop", "time": "2001-01-01T00:00:00Z"})

        status, out, err = notice("aws", Fake(self, answers), *SHOW)
        self.assertEqual((status, out.strip()), (0, "1"), err)
        self.assertEqual(len(tokens), 2)

    def test_gcp_preempted(self):
        def answers(path, headers, _):
            self.assertEqual(headers["Metadata-Flavor"], "Google")
            return {"/computeMetadata/v1/instance/preempted": "TRUE"}.get(path, "NONE")

        status, out, err = notice("gcp", Fake(self, answers), *SHOW)
        self.assertEqual((status, out.strip()), (0, "28"), err)

    def test_gcp_maintenance_that_migrates_is_none(self):
        fake = Fake(
            self, lambda path, headers, _: "FALSE"
            if path.endswith("preempted") else "MIGRATE_ON_HOST_MAINTENANCE")
        self.assertEqual(notice("gcp", fake, "--for", "0.3", *SHOW)[0], 3)
        self.assertIn(("GET", "/computeMetadata/v1/instance/maintenance-event"), fake.asked)

    def azure(self, events):
        def answers(path, headers, _):
            self.assertEqual(headers["Metadata"], "true")
            if path.startswith("/metadata/instance/compute/name"):
                return "vm7"
            return json.dumps({"DocumentIncarnation": 1, "Events": events})

        return Fake(self, answers)

    def test_azure_events_of_this_machine_alone(self):
        soon = email.utils.format_datetime(
            datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=60), usegmt=True)
        others = [{"EventType": "Preempt", "Resources": ["vm8"], "NotBefore": soon},
                  {"EventType": "Freeze", "Resources": ["vm7"], "NotBefore": soon}]
        self.assertEqual(notice("azure", self.azure(others), "--for", "0.3", *SHOW)[0], 3)
        own = {"EventType": "Preempt", "Resources": ["vm7"], "NotBefore": soon}
        status, out, err = notice("azure", self.azure([*others, own]), *SHOW)
        self.assertEqual(status, 0, err)
        self.assertTrue(1 <= int(out) <= 58, out)

    def test_it_signals_a_process(self):
        process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        self.addCleanup(process.kill)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("%d\n" % process.pid)
            file.flush()
            status, _, err = notice("gcp", Fake(self, lambda *_: "TRUE"), "--pid", file.name)
        self.assertEqual(status, 0, err)
        self.assertEqual(process.wait(30), -signal.SIGTERM)

    def test_it_calls_ctl_and_tells_if_that_failed(self):
        with tempfile.TemporaryDirectory() as directory:
            program = os.path.join(directory, "hvdrun")
            with open(program, "w") as file:
                file.write("#!/bin/sh\necho \"$@\"\n[ ! -e '%s/no' ]\n" % directory)
            os.chmod(program, 0o755)
            words = ["--address", "job.address", "--host", "node7", "--hvdrun", program]
            status, out, err = notice("gcp", Fake(self, lambda *_: "TRUE"), *words)
            self.assertEqual((status, out), (0, "ctl --address job.address drain node7 28\n"), err)
            open(os.path.join(directory, "no"), "w").close()
            self.assertEqual(notice("gcp", Fake(self, lambda *_: "TRUE"), *words)[0], 1)

    def test_a_service_that_is_broken_is_named_once_and_asked_again(self):
        looks = []

        def answers(path, *_):
            looks.append(path)
            return "}" if len(looks) < 6 else json.dumps(
                {"Events": [{"EventType": "Reboot", "Resources": ["}"]}]})

        status, _, err = notice("azure", Fake(self, answers), *SHOW)
        self.assertEqual(status, 0, err)
        self.assertEqual(err.count("the metadata service at"), 1)

    def test_arguments(self):
        self.assertEqual(tool("hvd-notice", "nowhere")[0], 2)
        self.assertEqual(tool("hvd-notice", "aws")[0], 2)
        self.assertEqual(tool("hvd-notice", "aws", "--pid", "1", "--interval", "0")[0], 2)


class Slurm(unittest.TestCase):
    """Slurm's own programs are scripts here, which say what they do in an allocation."""

    def allocation(self, sinfo, **environment):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        for name, text in (("scontrol",
                            "[ \"$*\" = 'show hostnames n[1-4]' ] && printf 'n1\\nn2\\nn3\\nn4\\n'"),
                           ("sinfo", sinfo)):
            path = os.path.join(directory.name, name)
            with open(path, "w") as file:
                file.write("#!/bin/sh\n%s\n" % text)
            os.chmod(path, 0o755)
        return tool(
            "hvd-hosts-slurm", **{
                "PATH": directory.name + ":" + os.environ["PATH"], "SLURM_JOB_NODELIST": "n[1-4]",
                "SLURM_TASKS_PER_NODE": "2(x3),1", **environment
            })

    def test_nodes_that_are_well_with_their_tasks(self):
        status, out, err = self.allocation("printf 'n1 allocated\\nn2 mixed\\nn3 draining\\nn4 idle\\n'")
        self.assertEqual((status, out), (0, "n1:2\nn2:2\nn4:1\n"), err)

    def test_states_that_leave_a_node_out(self):
        for state in ("drained", "drng", "down", "down*", "failing", "fail", "maint", "allocated*",
                      "unknown"):
            status, out, err = self.allocation(
                "printf 'n1 %s\\nn2 allocated\\nn3 allocated\\nn4 allocated\\n'" % state)
            self.assertEqual((status, out), (0, "n2:2\nn3:2\nn4:1\n"), (state, err))

    def test_what_can_t_be_asked_is_an_error_and_no_answer(self):
        status, out, err = self.allocation("exit 1")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("sinfo", err)
        self.assertIn("expected for example", self.allocation("true", SLURM_TASKS_PER_NODE="many")[2])
        self.assertIn("SLURM_JOB_NODELIST", self.allocation("true", SLURM_JOB_NODELIST="")[2])


def dns_server(records):
    """Answers A questions for the names of `records`; SERVFAIL for "broken". On port 53 of loopback."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    while True:
        data, peer = server.recvfrom(4096)
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1:at + 1 + data[at]].decode())
            at += 1 + data[at]
        kind = struct.unpack("!H", data[at + 1:at + 3])[0]
        name = ".".join(labels)
        code = 2 if name == "broken.test" else 0 if name in records else 3
        found = records.get(name, []) if kind == 1 else []
        answer = data[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(found), 0, 0) + data[12:at + 5]
        for address in found:
            answer += struct.pack("!HHHIH", 0xc00c, 1, 1, 0, 4) + socket.inet_aton(address)
        server.sendto(answer, peer)


class Dns(unittest.TestCase):
    """In network and mount namespaces of its own, where the resolver asks a server on loopback."""

    def test_every_address_is_a_host(self):
        if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
            self.skipTest("needs root, unshare and ip")
        done = subprocess.run(["unshare", "--mount", "--net", sys.executable, __file__, "inside"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                              check=False)
        if "unshare failed" in done.stdout:
            self.skipTest(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout)


def inside():
    with tempfile.TemporaryDirectory() as directory:
        for name, text in (("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"),
                           ("nsswitch.conf", "hosts: dns\n")):
            path = os.path.join(directory, name)
            with open(path, "w") as file:
                file.write(text)
            subprocess.run(["mount", "--bind", path, "/etc/" + name], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        records = {"workers.test": ["10.0.0.3", "10.0.0.1", "10.0.0.2"], "empty.test": []}
        threading.Thread(target=dns_server, args=(records,), daemon=True).start()
        for words, expected in ((["workers.test"], (0, "10.0.0.1:1\n10.0.0.2:1\n10.0.0.3:1\n")),
                                (["workers.test", "4"], (0, "10.0.0.1:4\n10.0.0.2:4\n10.0.0.3:4\n")),
                                (["nobody.test"], (0, "")), (["empty.test"], (0, "")), (["broken.test"],
                                                                                        (1, ""))):
            status, out, err = tool("hvd-hosts-dns", *words)
            assert (status, out) == expected, (words, status, out, err)
        assert tool("hvd-hosts-dns", "workers.test", "0")[0] == 1
        for name in ("resolv.conf", "nsswitch.conf"):
            subprocess.run(["umount", "/etc/" + name], check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["inside"]:
        inside()
    else:
        unittest.main(verbosity=2)
