"""Those who do not belong to the job: refused or bounded, the job undisturbed."""

import hashlib
import hmac
import os
import resource
import signal
import socket
import struct
import subprocess

from harness import BIN, PATIENCE, Job, ScenarioTest, containing, main

SECRET = "0123456789abcdef" * 4


class Strangers(ScenarioTest):
    """A job of two stands at a gate in step 10 while the stranger calls; then it ends as if nobody had."""

    def setUp(self):
        self.job = Job(self, "a:2", ["steps=20", "commit=5", "gate=10"], np=2, min_np=1, max_np=2,
                       options={"job": "mine", "restart": "false", "heartbeat_timeout": 5},
                       environment={"HVD_SECRET": SECRET})
        self.job.wait("gate", step=10)
        self.start = self.job.wait("start")
        host, port = self.start["driver"].rsplit(":", 1)
        self.address = (host.strip("[]"), int(port))
        self.sockets = []
        self.addCleanup(lambda: [s.close() for s in self.sockets])

    def undisturbed(self):
        self.job.finish(0)
        self.job.verify(20, workers=2)
        self.assertEqual(self.job.find("interrupted"), [])
        self.assertEqual(self.job.generations(), [(1, 2)])

    def _by_hand(self, **environment):
        values = {
            "HVD_DRIVER": self.start["driver"], "HVD_SECRET": SECRET, "HVD_JOB": "mine", "HVD_HOST": "a",
            "HVD_SLOT": "7", "HVD_WORKER": "999", "HVD_INIT_TIMEOUT": "5", "HVD_CONNECT_TIMEOUT": "3"
        }
        values.update(environment)
        code, events = self.job.run_worker(["steps=20", "commit=5"], values)
        self.assertNotEqual(code, 0)
        end = [e for e in events if e["ev"] == "end"]
        self.assertEqual(len(end), 1, events)
        self.assertNotEqual(end[0]["status"], "HVD_OK")
        self.assertTrue(end[0]["msg"])
        self.undisturbed()
        return end[0]

    def test_wrong_secret(self):
        end = self._by_hand(HVD_SECRET="f" * 64)
        self.assertEqual(end["status"], "HVD_REFUSED")

    def test_no_secret(self):
        end = self._by_hand(HVD_SECRET="")
        self.assertIn(end["status"], ("HVD_REFUSED", "HVD_INVALID"))

    def test_another_job(self):
        end = self._by_hand(HVD_JOB="yours")
        self.assertEqual(end["status"], "HVD_REFUSED")
        self.assertIn("job", end["msg"])

    def test_a_worker_that_nobody_started(self):
        end = self._by_hand()
        self.assertEqual(end["status"], "HVD_REFUSED")

    def test_registration_of_a_living_worker_again(self):
        end = self._by_hand(HVD_WORKER=str(self.start["worker"]), HVD_SLOT=str(self.start["slot"]))
        self.assertEqual(end["status"], "HVD_REFUSED")

    def test_identity_of_a_lost_worker(self):
        lost = [e for e in self.job.find("train") if e["rank"] == 1][0]
        self.job.send_signal(lost, signal.SIGKILL)
        self.job.wait("event_peer_lost")
        code, events = self.job.run_worker(["steps=20", "commit=5"], {
            "HVD_DRIVER": self.start["driver"], "HVD_SECRET": SECRET, "HVD_JOB": "mine", "HVD_HOST": "a",
            "HVD_SLOT": str(lost["slot"]), "HVD_WORKER": str(lost["worker"]), "HVD_INIT_TIMEOUT": "5"})
        end = [e for e in events if e["ev"] == "end"]
        self.assertEqual(len(end), 1, events)
        self.assertIn(end[0]["status"], ("HVD_REFUSED", "HVD_REMOVED"))
        self.job.finish(0)
        self.job.verify(20, workers=1)
        self.assertEqual([size for _, size in self.job.generations()], [2, 1])

    def _connect(self):
        peer = socket.create_connection(self.address, timeout=10)
        self.sockets.append(peer)
        return peer

    def _closed_by_peer(self, peer):
        peer.settimeout(15)
        try:
            while peer.recv(65536):
                pass
        except ConnectionError:
            pass

    def test_garbage(self):
        for data in (b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(range(256)) * 64, b"\0" * 5000):
            peer = self._connect()
            try:
                peer.sendall(data)
            except ConnectionError:
                pass
            self._closed_by_peer(peer)
        self.undisturbed()

    def test_truncated_and_oversized_records(self):
        hello = self._connect()
        hello.sendall(bytes([0x16, 3, 1]) + struct.pack(">H", 512) + bytes([1, 0, 1]))  # half a ClientHello
        large = self._connect()
        large.sendall(bytes([0x16, 3, 1]) + struct.pack(">H", 0xFFFF) + b"\1" * 20000)
        self._closed_by_peer(large)
        frame = self._connect()
        frame.sendall(struct.pack(">I", 0xFFFFFFFF) + b"x" * 100)  # our frame, without TLS
        self._closed_by_peer(frame)
        self._closed_by_peer(hello)  # the handshake has a deadline
        self.undisturbed()

    def test_ten_thousand_idle_connections(self):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        wanted = min(10000, most - 200) if most != resource.RLIM_INFINITY else 10000
        for _ in range(wanted):
            self._connect()
        self.undisturbed()

    def test_a_slow_reader_and_garbage_with_the_secret(self):
        """Someone who has the secret, but does not keep to the protocol, whoever's key is shown."""
        garbage = (struct.pack(">I", 0xFFFFFFF0) + b"y" * 5000, struct.pack(">I", 65537) + b"x",
                   struct.pack(">I", 64) + b"z" * 64, struct.pack(">I", 1000) + b"cut", b"")
        identities = ("worker/1", "worker/7777", "agent/a", "operator", "admission", "job")
        clients = []
        for client, data in [(self._with_key(identity), data) for identity in identities for data in garbage]:
            clients.append(client)
            try:
                client.stdin.write(data)
                client.stdin.flush()
            except BrokenPipeError:
                pass  # it was refused faster
        for client in clients:  # which stays until the driver hangs up
            client.stdout.read()
            try:
                client.stdin.close()
            except BrokenPipeError:
                pass
            client.wait(20 * PATIENCE)
            client.stdout.close()
        # They were let in: what they said was read, and refused.
        self.job.wait("hvdrun", text=containing(r"refused \(Protocol\): protocol error: "))
        self.job.wait("hvdrun", text=containing("no hello within 5 s"))
        self.undisturbed()

    def _with_key(self, identity):
        """A connection that has proved to know a key, as `openssl s_client` whose input is what it says."""
        return subprocess.Popen(
            ["openssl", "s_client", "-connect", "%s:%d" % self.address, "-tls1_3", "-quiet", "-psk",
             self.key(identity), "-psk_identity", identity, "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @staticmethod
    def key(identity):
        """As src/wire/tls.cc derives it: HKDF with SHA-256."""
        prk = hmac.new(b"libhvd", SECRET.encode(), hashlib.sha256).digest()
        info = b"control channel, TLS 1.3 pre-shared key of " + identity.encode()
        return hmac.new(prk, info + b"\1", hashlib.sha256).hexdigest()


class FewDescriptors(ScenarioTest):
    """hvdrun may open few descriptors, and strangers hold what they can: a lost worker gets a successor all
    the same."""

    def test_strangers_leave_descriptors(self):
        limited = ["sh", "-c", 'ulimit -n 56; exec "$@"', "sh", os.path.join(BIN, "hvdrun")]
        job = Job(self, "a:2", ["steps=40", "commit=1", "gate=10", "gate=20"], np=2, min_np=1, max_np=2,
                  script=False, prepare=lambda _: limited)
        job.wait("gate", step=10)
        start = job.wait("start")
        host, port = start["driver"].rsplit(":", 1)
        strangers = []
        self.addCleanup(lambda: [stranger.close() for stranger in strangers])
        for _ in range(200):
            stranger = socket.socket()
            strangers.append(stranger)
            stranger.connect((host, int(port)))
        job.wait("hvdrun", text=containing("refused .* connection.s. so far"))
        job.send_signal(job.wait("train", rank=1), signal.SIGKILL)
        job.open("step.10")
        job.wait("event_hosts_updated")  # its successor waits to be taken in
        job.finish(0)
        job.verify(40, workers=2)
        self.assertEqual(job.find("hvdrun", text=containing("Too many open files")), [])


class Newcomers(ScenarioTest):
    """U1: a newcomer that does not fit is sent away with the reason, and nobody else notices."""

    def run_with(self, variables, reason, environment=None):
        # As if that machine's environment were another one.
        export = "".join("export %s='%s'; " % variable for variable in variables.items())
        wrapper = ["/bin/sh", "-c", '[ "$HVD_HOST" != b ] || { %s}; exec "$@"' % export, "sh"]
        job = Job(self, "a:2", ["steps=30", "commit=1", "gate=10"], np=2, min_np=2, max_np=3, wrapper=wrapper,
                  environment=environment, options={"blocklist_after": 2})
        job.wait("gate", step=10)
        job.set_hosts("a:2,b:1")
        job.wait("hvdrun", text=containing("on b lost: does not fit the other workers: .*" + reason))
        job.wait("end", host="b", msg=containing("does not fit the other workers: .*" + reason))
        job.wait("hvdrun", text=containing("host b is on the blocklist"))
        job.finish(0)
        job.verify(30, workers=2)
        job.assert_no_step_twice()
        self.assertEqual(job.generations(), [(1, 2)])
        self.assertEqual(job.find("interrupted"), [])

    def test_U1_another_option(self):
        self.run_with({"HVD_LOCAL": "off"}, r"option local \(HVD_LOCAL\) is off, on the other workers on",
                      {"HVD_LOCAL": "on"})

    def test_U1_another_interval_of_comparisons(self):
        self.run_with({"HVD_DIVERGENCE_EVERY": "3"},
                      r"option divergence_every \(HVD_DIVERGENCE_EVERY\) is 3, on the other workers 0")

    def test_U1_another_way_to_average(self):
        self.run_with({"HVD_JOIN_COUNTS": "true"},
                      r"option join_counts \(HVD_JOIN_COUNTS\) is true, on the other workers false")

    def test_U1_another_backend(self):
        modules = os.environ.get("HVD_TEST_MODULES")
        if not modules:
            self.skipTest("HVD_TEST_MODULES names no modules")
        self.run_with({"HVD_BACKEND": "tiny", "HVD_PLUGIN_PATH": modules},
                      "its backend for host memory is tiny, that of the other workers ")


if __name__ == "__main__":
    main()
