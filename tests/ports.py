"""Ports for tests that name one before anybody listens there."""
import random
import socket

_RANDOM = random.SystemRandom()  # whatever seed a test has set


def free_ports(count):
    """Ports of this machine that nobody has, below those that the system gives out: they stay free until the
    test uses them, whatever other tests do meanwhile."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low = int(file.read().split()[0])
    ports = set()
    while len(ports) < count:
        port = _RANDOM.randrange(max(1024, low - 16384), low)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.add(port)
    return list(ports)
