"""Looking at a job from outside: HTTP, metrics, hvdrun ctl, the status line of a terminal, and the page in a
browser."""

import http.client
import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from urllib.parse import urlsplit

from harness import BIN, PATIENCE, Job, ScenarioTest, main

try:
    from prometheus_client.openmetrics import parser as openmetrics
except ImportError:
    openmetrics = None

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEADLINE = 30 * PATIENCE
WITH_HTTP = b"built without Boost.Beast" not in subprocess.run(
    [os.path.join(BIN, "hvdrun"), "--http", "127.0.0.1:0", "--set", "np=no", "true"], stderr=subprocess.PIPE,
    check=False).stderr


def eventually(ask, what):
    """What `ask` gives, as soon as that is true."""
    end = time.monotonic() + DEADLINE
    while True:
        got = ask()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError("waited in vain until " + what)
        time.sleep(0.05)


class Seen(ScenarioTest):
    def job(self, *worker):
        """Three workers in four slots: that stand at a gate, or as `worker` says."""
        job = Job(self, "a:2,b:2", ["commit=1", *(worker or ("steps=10", "gate=5"))], np=3, min_np=2,
                  max_np=3, flags=["--http", "127.0.0.1:0"])
        job.url = re.search(r"http://\S+",
                            job.wait("hvdrun", text=lambda t: "status at" in t)["text"]).group(0)
        return job

    def get(self, job, path, method="GET", headers=None):
        connection = http.client.HTTPConnection(urlsplit(job.url).netloc, timeout=DEADLINE)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def status(self, job):
        return json.loads(self.get(job, "/status")[2])

    def moving_job(self):
        """One that a worker can be killed in: who stands at a gate does not hear of it."""
        return self.job("steps=200", "pace=50")

    def through_a_kill(self, job):
        """A worker dies, another one takes its place: the status when all three train again."""
        job.wait("train", gen=1, count=3)
        eventually(lambda: self.status(job)["commits"] >= 3, "commits are told")
        job.send_signal(job.find("start")[1], 9)

        def healed():
            status = self.status(job)
            whole = status["generation"] >= 2 and [w["state"] for w in status["workers"]] == ["training"] * 3
            return status if whole and any("recovery" in g for g in status["generations"]) else None

        return eventually(healed, "three workers train again")


@unittest.skipUnless(WITH_HTTP, "this hvdrun was built without Boost.Beast")
class Http(Seen):
    def test_status_tells_of_a_kill_and_a_join(self):
        job = self.moving_job()
        status = self.through_a_kill(job)
        self.assertEqual(status["phase"], "running")
        self.assertEqual(status["term"], 1)
        self.assertEqual([w["rank"] for w in status["workers"]], [0, 1, 2])
        self.assertGreater(status["goodput"], 0)
        self.assertLessEqual(status["goodput"], 1)
        lost = [g for g in status["generations"] if g["cause"] == "peer_lost"]
        self.assertEqual(len(lost), 1)
        self.assertRegex(lost[0]["reason"], "lost: (connection closed|killed by signal 9)")
        self.assertGreaterEqual(lost[0]["recovery"]["total_seconds"], lost[0]["recovery"]["forming_seconds"])
        self.assertTrue(any("formed" in line["text"] for line in status["log"]))
        job.finish(0)

    def test_probes_methods_and_hosts(self):
        job = self.job()
        job.wait("train", gen=1, count=3)
        eventually(lambda: self.get(job, "/readyz")[0] == 200, "the job is ready")
        self.assertEqual(self.get(job, "/livez")[0], 200)
        self.assertEqual(self.get(job, "/nothing")[0], 404)
        self.assertEqual(self.get(job, "/../etc/passwd")[0], 404)
        code, headers, _ = self.get(job, "/status", method="POST")
        self.assertEqual((405, "GET, HEAD"), (code, headers.get("Allow")))
        code, headers, body = self.get(job, "/", method="HEAD")
        self.assertEqual((200, ""), (code, body))
        self.assertEqual(len(self.get(job, "/")[2].encode()), int(headers["Content-Length"]))
        for host, expected in (("localhost", 200), ("127.0.0.1:1", 200), ("[::1]", 200), ("evil.example",
                                                                                          421), ("", 421)):
            self.assertEqual(expected, self.get(job, "/status", headers={"Host": host})[0], host)
        self.assertIn("default-src 'none'", self.get(job, "/")[1]["Content-Security-Policy"])
        for path in ("/", "/status", "/metrics", "/page.js"):
            self.assertNotIn("hvd-key", self.get(job, path)[2])
        job.finish(0)

    def test_strangers_hold_up_nobody(self):
        job = self.job()
        address = urlsplit(job.url)
        idle = [socket.create_connection((address.hostname, address.port)) for _ in range(200)]
        with socket.create_connection((address.hostname, address.port), timeout=DEADLINE) as wild:
            wild.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20000 + b"\r\n\r\n")
            self.assertIn(b" 431 ", wild.recv(1000))
        with socket.create_connection((address.hostname, address.port), timeout=DEADLINE) as wild:
            wild.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
            self.assertIn(b" 400 ", wild.recv(1000))
        with socket.create_connection((address.hostname, address.port), timeout=DEADLINE) as wild:
            wild.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n")
            self.assertIn(b" 413 ", wild.recv(1000))
        self.assertEqual(self.get(job, "/livez")[0], 200)
        # Workers inherit neither the listening socket nor what it has accepted: who hangs up, hangs up.
        own = self.sockets(job.driver())
        self.assertTrue(own)
        job.wait("train", gen=1, count=3)
        for worker in job.find("train", gen=1):
            self.assertEqual(set(), own & self.sockets(worker["pid"]))
        # 64 are served at a time: those that were idle for longest gave way, the last ones did not.
        for connection in idle[:136]:
            self.assertTrue(self.is_closed(connection))
        idle[-1].settimeout(DEADLINE)
        idle[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertIn(b" 200 ", idle[-1].recv(1000))
        for connection in idle:
            connection.close()
        with socket.create_connection((address.hostname, address.port)) as slow:
            slow.sendall(b"GET / HT")
            self.assertTrue(self.is_closed(slow), "a request that never ends")
        job.finish(0)

    @staticmethod
    def sockets(pid):
        found = set()
        for name in os.listdir("/proc/%d/fd" % pid):
            try:
                found.add(os.readlink("/proc/%d/fd/%s" % (pid, name)))
            except FileNotFoundError:
                pass
        return {target for target in found if target.startswith("socket:")}

    @staticmethod
    def is_closed(connection):
        """By the server, which says nothing first."""
        connection.settimeout(DEADLINE)
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    @unittest.skipUnless(openmetrics, "python's prometheus_client is not installed")
    def test_metrics_by_prometheus_own_parser(self):
        job = self.moving_job()
        self.through_a_kill(job)
        code, headers, text = self.get(job, "/metrics")
        self.assertEqual(code, 200)
        self.assertTrue(headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0"))
        families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
        self.assertEqual(
            {
                "hvd_build", "hvd_job_phase", "hvd_workers", "hvd_generation", "hvd_resets",
                "hvd_recovery_seconds", "hvd_goodput_ratio", "hvd_commit_seconds", "hvd_sync_bytes",
                "hvd_hosts_blocked", "hvd_stalled_operations", "hvd_driver_term", "hvd_generation_size",
                "hvd_slots"
            }, set(families))
        value = {(s.name, tuple(s.labels.items())): s.value for family in families.values()
                 for s in family.samples}
        self.assertEqual(value["hvd_workers", (("state", "training"),)], 3)
        self.assertEqual(value["hvd_resets_total", (("cause", "peer_lost"),)], 1)
        self.assertGreater(value["hvd_commit_seconds_count", ()], 0)
        self.assertEqual(value["hvd_driver_term", ()], 1)
        self.assertGreaterEqual(value["hvd_recovery_seconds_count", (("phase", "total"),)], 2)
        self.assertFalse(
            [labels for _, labels in value if {"worker", "rank", "host"} & {name for name, _ in labels}])
        job.finish(0)


@unittest.skipUnless(WITH_HTTP, "this hvdrun was built without Boost.Beast")
class Wrong(unittest.TestCase):
    def test_an_endpoint_that_is_none_is_refused(self):
        for endpoint in ("nowhere:80", "127.0.0.1:70000", "127.0.0.1:", "a b", "::1:80"):
            done = subprocess.run([os.path.join(BIN, "hvdrun"), "--http", endpoint, "true"],
                                  stderr=subprocess.PIPE, text=True, timeout=DEADLINE, check=False)
            self.assertEqual(done.returncode, 2, endpoint)
            self.assertIn("--http " + endpoint, done.stderr)


class Ctl(ScenarioTest):
    def test_watch_until_the_driver_is_gone(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = os.path.join(folder.name, "address")
        job = Job(self, "a:2", ["steps=6", "commit=1", "gate=3"], np=2, flags=["--address-file", file])
        job.wait("train", gen=1, count=2)
        command = [os.path.join(BIN, "hvdrun"), "ctl", "--address", file, "--json", "--watch", "status"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
            self.assertEqual(json.loads(watch.stdout.readline())["generation"], 1)
            self.assertEqual(json.loads(watch.stdout.readline())["size"], 2)
            job.finish(0)
            _, said = watch.communicate(timeout=DEADLINE)
            self.assertEqual(watch.returncode, 1)
            self.assertIn("driver", said)


class Terminal(ScenarioTest):
    def run_on_terminal(self, *flags, environment=None):
        """hvdrun with a terminal for all three streams: what it wrote, and its status."""
        command = [os.path.join(BIN, "hvdrun"), "-np", "2", "--set", "heartbeat_interval=0.1", *flags, "--",
                   os.path.join(BIN, "scenario_worker"), "steps=20", "commit=1", "pace=100"]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        inherited = {
            name: value for name, value in os.environ.items()
            if not name.startswith("HVD_") or name == "HVD_PLUGIN_PATH"
        }
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(command[0], command,
                      {**inherited, "TERM": "xterm", "HVD_TEST_DIR": folder.name, **(environment or {})})
        said, end = b"", time.monotonic() + 2 * DEADLINE
        while time.monotonic() < end and select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
            try:
                said += os.read(terminal, 65536)
            except OSError:  # the last one that held the other end is gone
                break
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        return said.decode(), os.waitstatus_to_exitcode(status)

    def test_status_line_below_the_output(self):
        said, status = self.run_on_terminal()
        self.assertEqual(status, 0, said)
        lines = re.findall(r"\x1b\[2m(.*?)\x1b\[0m", said)
        self.assertTrue(any("running | generation 1 | 2 of 2 workers" in line for line in lines), said)
        self.assertTrue(all("\n" not in line and len(line) < 80 for line in lines), lines)
        # Whatever is written after it has been drawn erases it first; the end leaves none.
        for rest in re.split(r"\x1b\[2m.*?\x1b\[0m", said)[1:]:
            self.assertTrue(rest.startswith("\r\x1b[K"), repr(rest[:80]))
        self.assertRegex(said, r"(\x1b\[K|\n)hvdrun: job succeeded[^\x1b]*\n$")
        self.assertIn("[0] ", said)

    def test_none_where_it_is_not_wanted(self):
        for flags, environment in ((["--no-status-line"], {}), ([], {"TERM": "dumb"})):
            said, status = self.run_on_terminal(*flags, environment=environment)
            self.assertEqual(status, 0, said)
            self.assertNotIn("\x1b", said)

    def test_none_without_a_terminal(self):
        job = Job(self, "a:2", ["steps=3", "commit=1"], np=2, environment={"TERM": "xterm"})
        job.finish(0)
        self.assertNotIn("\x1b", "".join(event["line"] for event in job.events))


class Chromium:
    """Speaks the DevTools protocol over a pipe (--remote-debugging-pipe): JSON texts that end with a NUL."""

    def __init__(self, test, width, dark=False):
        profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        test.addCleanup(profile.cleanup)
        from_us, self.write = os.pipe()
        self.read, to_us = os.pipe()

        command = [
            "bash", "-c",
            'exec "$@" 3<&%d 4>&%d' % (from_us, to_us), "bash", CHROMIUM, "--headless=new", "--no-sandbox",
            "--disable-gpu", "--no-first-run", "--remote-debugging-pipe", "--user-data-dir=" + profile.name,
            "about:blank"
        ]
        self.process = subprocess.Popen(command, pass_fds=(from_us, to_us), stderr=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL)
        os.close(from_us)
        os.close(to_us)
        test.addCleanup(self.close)
        self.buffer, self.last, self.session, self.requested = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Network.enable")
        self.call("Page.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.read)
        os.close(self.write)

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 2 * DEADLINE
        while True:
            while b"\0" not in self.buffer:
                if not select.select([self.read], [], [], max(0, end - time.monotonic()))[0]:
                    raise AssertionError("the browser does not answer " + method)
                self.buffer += os.read(self.read, 1 << 20)
            text, self.buffer = self.buffer.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("method") == "Network.requestWillBeSent":
                self.requested.append(answer["params"]["request"]["url"])
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise AssertionError("%s: %s" % (method, answer["error"]))
                return answer["result"]

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")


@unittest.skipUnless(WITH_HTTP, "this hvdrun was built without Boost.Beast")
@unittest.skipUnless(CHROMIUM, "chromium is not installed")
class Browser(Seen):
    def test_page_through_a_kill_a_join_and_the_end(self):
        job = self.moving_job()
        browser = Chromium(self, 1200)
        browser.call("Page.navigate", url=job.url)
        text = lambda of: browser.evaluate("document.querySelector('%s')?.textContent ?? ''" % of)
        eventually(lambda: text("#phase") == "running", "the page says that the job runs")
        self.through_a_kill(job)
        eventually(lambda: " lost: " in text("#history"), "the page says who was lost")
        eventually(lambda: browser.evaluate("document.querySelectorAll('#workers tr').length") == 3,
                   "three workers are shown")
        self.assertGreater(browser.evaluate("document.querySelectorAll('#history svg rect').length"), 0)
        self.assertRegex(
            browser.evaluate("document.querySelector('#history svg').getAttribute('aria-label')"), "forming")
        eventually(lambda: re.search(r"generation \d, 3 workers", text("#announce")),
                   "a screen reader hears of it")
        self.assertEqual(browser.evaluate("document.querySelectorAll('main, header, footer, nav').length"), 4)
        self.assertEqual(
            browser.evaluate("[...document.querySelectorAll('th')].filter(t => !t.scope).length"), 0)
        self.assertEqual(browser.evaluate("document.querySelector('#announce').getAttribute('aria-live')"),
                         "polite")
        self.assertTrue(browser.evaluate("document.querySelector('#gone').hidden"))
        self.assertEqual([], [url for url in browser.requested if not url.startswith(job.url)],
                         "nothing from elsewhere")
        job.finish(0)
        eventually(lambda: "driver is gone" in text("#gone"), "the page says that the driver is gone")
        self.assertFalse(browser.evaluate("document.querySelector('#gone').hidden"))
        self.assertIn(" lost: ", text("#history"), "what was known stays")

    def test_dark_and_on_a_phone(self):
        job = self.job()
        browser = Chromium(self, 360, dark=True)
        browser.call("Page.navigate", url=job.url)
        eventually(lambda: browser.evaluate("document.querySelectorAll('#workers tr').length") == 3,
                   "the workers are shown")
        self.assertLessEqual(browser.evaluate("document.documentElement.scrollWidth"), 360,
                             "only tables scroll sideways")
        color = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        self.assertLess(sum(map(int, re.findall(r"\d+", color)[:3])), 150, color)
        job.finish(0)


if __name__ == "__main__":
    main()
