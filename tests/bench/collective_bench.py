#!/usr/bin/env python3
"""Collectives of libhvd side by side with Gloo, MPI, PyTorch's gloo and memcpy: collective_bench [--quick]
[--only PART,...]

All contenders are there at the same time and take turns in rounds (A B C, B C A, ...), so that what disturbs
the machine disturbs all of them. A time is a round's median; what is reported is the median and the range
over the rounds, and ratios are taken within a round. The last line is a JSON object.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time

import aims
import contenders
from contenders import Failed, Unavailable

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, KIB, 64 * KIB, MIB, 64 * MIB, 256 * MIB)
# bytes: samples a round, calls a sample, rounds. Small ones run back to back (roots take turns), large
# ones each from a common start.
PLAN = {8: (20, 50, 7), KIB: (20, 50, 7), 64 * KIB: (20, 10, 7), MIB: (20, 1, 7), 16 * MIB: (7, 1, 7),
        64 * MIB: (5, 1, 7), 256 * MIB: (3, 1, 5)}
QUICK = {8: (10, 50, 3), KIB: (10, 50, 3), 64 * KIB: (10, 10, 3), MIB: (10, 1, 3), 16 * MIB: (5, 1, 3),
         64 * MIB: (3, 1, 3)}
FEWEST, ENOUGH_S = 3, 12
SMALL_BYTES = sum(64 << i % 7 for i in range(1000))  # of the thousand small tensors
DETAILS = ("variables", "small", "check")
ONE_HOST = {"hvd": lambda n: contenders.hvd("hvd", n),
            "hvd_local_off": lambda n: contenders.hvd("hvd_local_off", n, {"HVD_LOCAL": "off"}),
            "gloo": contenders.gloo, "openmpi": contenders.mpi, "torch_gloo": contenders.torch}

# What moves data between hosts: libhvd's modules, what they cost with checksums and under TLS, and other
# libraries' TCP.
TRANSPORTS = {
    "hvd_tcp": lambda hosts, n: hosts.hvd_over("tcp", n, "hvd_tcp", {"HVD_ENCRYPT": "off"}),
    "hvd_tcp_checksum": lambda hosts, n: hosts.hvd_over("tcp", n, "hvd_tcp_checksum", {
        "HVD_ENCRYPT": "off", "HVD_CHECKSUM": "1"}),
    "hvd_tcp_encrypt": lambda hosts, n: hosts.hvd_over("tcp", n, "hvd_tcp_encrypt", {"HVD_ENCRYPT": "on"}),
    "hvd_gloo": lambda hosts, n: hosts.hvd_over("gloo", n, "hvd_gloo", {"HVD_ENCRYPT": "off"}),
    "gloo": lambda hosts, n: hosts.gloo(n), "openmpi_tcp": lambda hosts, n: hosts.mpi_tcp(n)
}
DELAY_US = 1000  # each way
PLACES = {"transports_loopback": contenders.OneHost, "transports_two_hosts": contenders.TwoHosts,
          "transports_delayed": lambda: contenders.TwoHosts(DELAY_US)}

# Each backend's own library, and libhvd over that backend: what a named, checked, elastic operation costs.
RAW = {
    "mpi": ("openmpi", {
        "openmpi": contenders.mpi, "hvd_mpi": contenders.hvd_mpi, "hvd_mpi_alone": contenders.hvd_mpi_alone,
        "hvd_mpi_elastic": contenders.hvd_mpi_elastic
    }), "gloo": ("gloo", {
        "gloo": contenders.gloo, "hvd_local_off": lambda n: contenders.hvd(
            "hvd_local_off", n, {"HVD_LOCAL": "off", "HVD_BACKEND": "gloo"})
    }), "nccl": ("nccl", {"nccl": contenders.nccl, "hvd_nccl": contenders.hvd_nccl})
}


def log(text):
    print(text, flush=True)


def summary(call, values):
    """Median and range over rounds, and the best sample: what it takes while nobody disturbs it."""
    return {"median_us": round(statistics.median(values), 2), "low_us": round(min(values), 2),
            "high_us": round(max(values), 2), "best_us": round(call.best, 2), "rounds": len(values)}


def ratio(above, below):
    """Of two contenders' times in the same rounds."""
    values = [a / max(b, 1e-3) for a, b in zip(above, below)]
    return {key: float("%.4g" % value) for key, value in (
        ("median", statistics.median(values)), ("low", min(values)), ("high", max(values)))}


class Call:
    """What one contender is to do in each round."""

    def __init__(self, group, operation, size, samples, batch):
        self.group, self.operation, self.size = group, operation, size
        self.samples, self.batch, self.warm = samples, batch, 3 * batch if size < MIB else batch
        self.checked, self.best = False, float("inf")

    def run(self):
        times = self.group.run(self.operation, self.size, self.samples, self.batch, self.warm,
                               int(not self.checked))
        self.checked, self.best = True, min(self.best, *times)
        return statistics.median(times)


def take_turns(calls, rounds, now=time.monotonic):
    """{key: [median of each round]} for {key: Call}. Whole rounds; on a slow machine fewer, but not under
    FEWEST."""
    medians, keys = {key: [] for key in calls}, list(calls)
    deadline = now() + ENOUGH_S
    for turn in range(rounds):
        if turn >= FEWEST and now() > deadline:
            break
        for key in keys[turn % len(keys):] + keys[:turn % len(keys)]:
            medians[key].append(calls[key].run())
    for group in {id(call.group): call.group for call in calls.values()}.values():
        group.release()
    return medians


class Bench:
    def __init__(self, quick, only):
        self.plan, self.quick, self.only = (QUICK if quick else PLAN), quick, only
        self.sizes = [size for size in SIZES if size in self.plan]
        self.contenders = set()  # of the transports; all if empty
        self.unavailable, self.report, self.began = {}, {}, time.monotonic()

    def wanted(self, part):
        return not self.only or part in self.only

    def open(self, makers):
        """The groups that can be had; the others' reasons are kept and told."""
        groups = {}
        for name, make in makers.items():
            try:
                groups[name] = make()
            except Unavailable as why:
                if name not in self.unavailable:
                    log("%s: %s" % (name, why))
                self.unavailable[name] = str(why)
            except BaseException as why:
                for group in groups.values():
                    group.close()
                raise SystemExit(str(why)) if isinstance(why, Failed) else why
        return groups

    def matrix(self, groups, place, size, sizes, base="hvd", most_calls=1000):
        """Broadcast and allreduce of all sizes. Ratios are times over those of `base`.

        most_calls: in a sample, and samples."""
        copier = groups.get("memcpy")
        ranked = {name: group for name, group in groups.items() if name != "memcpy"}
        for operation in ("broadcast", "allreduce"):
            table = self.report.setdefault(place, {}).setdefault(operation,
                                                                 {}).setdefault("%d ranks" % size, {})
            for count in sizes:
                samples, batch, rounds = self.plan[count]
                samples, batch = min(samples, most_calls), min(batch, most_calls)
                calls = {
                    name: Call(group, operation, count, samples, batch) for name, group in ranked.items()
                }
                if copier:
                    calls["memcpy"] = Call(copier, "memcpy", count, samples, batch)
                medians = take_turns(calls, rounds)
                if copier and count >= MIB:
                    calls["memcpy_all_cores"] = Call(copier, "memcpy_all_cores", count, samples, 1)
                    medians.update(take_turns({"memcpy_all_cores": calls["memcpy_all_cores"]}, rounds))
                cell = table[aims.size_name(count)] = {name: summary(calls[name], values)
                                                       for name, values in medians.items()}
                for name, values in medians.items():
                    if name != base:
                        cell[name]["over_" + base] = ratio(values, medians[base])
                log("%4.0f s  %s, %s, %d ranks, %s:  %s" %
                    (time.monotonic() - self.began, place, operation, size, aims.size_name(count), "  ".join(
                        "%s %s (%s)" %
                        (name, aims.duration(value["median_us"]), aims.duration(value["best_us"]))
                        for name, value in cell.items())))

    def compare(self, name, calls, rounds, wanted):
        """Some measurements in turns; `wanted` is {ratio's name: (above, below)}."""
        medians = take_turns(calls, rounds)
        part = {key: summary(calls[key], values) for key, values in medians.items()}
        part.update({key: ratio(medians[above], medians[below]) for key, (above, below) in wanted.items()})
        self.report.setdefault("details", {})[name] = part
        log("%4.0f s  %s:  %s" % (time.monotonic() - self.began, name, "  ".join(
            "%s %s" % (key, "%s (%s)" % (aims.duration(v["median_us"]), aims.duration(v["best_us"]))
                       if "median_us" in v else "x%.2f" % v["median"])
            for key, v in part.items())))
        return medians

    def details(self, hvd):
        """What only libhvd has, against what it would cost otherwise."""
        rounds = 3 if self.quick else 7
        if self.wanted("variables"):
            self.compare("200 variables of 64 MiB together", {
                "one_tensor": Call(hvd, "broadcast", 64 * MIB, 5, 1),
                "broadcast_variables": Call(hvd, "broadcast_variables", 64 * MIB, 5, 1),
                "broadcast_each_async": Call(hvd, "broadcast_each", 64 * MIB, 5, 1)}, rounds, {
                "variables_over_one": ("broadcast_variables", "one_tensor"),
                "each_over_one": ("broadcast_each_async", "one_tensor")})
        if self.wanted("small"):
            self.compare("1000 small tensors", {
                "shuffled_async": Call(hvd, "small_shuffled", SMALL_BYTES, 5, 1),
                "one_by_one": Call(hvd, "small_one_by_one", SMALL_BYTES, 3, 1)}, rounds, {
                "one_by_one_over_async": ("one_by_one", "shuffled_async")})
        if self.wanted("check"):
            for count in (8, 64 * KIB):
                samples, batch, _ = self.plan[count]
                self.compare("check_host_updates, %s steps" % aims.size_name(count), {
                    "check": Call(hvd, "check_host_updates", count, samples, batch),
                    "allreduce": Call(hvd, "step", count, samples, batch),
                    "allreduce_and_check": Call(hvd, "step_with_check", count, samples, batch)}, rounds, {
                    "check_over_allreduce": ("check", "allreduce"),
                    "step_with_check_over_step": ("allreduce_and_check", "allreduce")})

    def timeline(self, size):
        if not self.wanted("timeline"):
            return
        try:
            groups = self.open({
                "hvd": lambda: contenders.hvd("hvd", size),
                "hvd_timeline": lambda: contenders.hvd("hvd_timeline", size, contenders.timeline_settings())})
        except Unavailable as why:
            log("timeline: %s" % why)
            return
        try:
            if "hvd_timeline" in groups:
                for count in (8, 64 * KIB):
                    samples, batch, rounds = self.plan[count]
                    calls = {
                        name: Call(group, "allreduce", count, samples, batch)
                        for name, group in groups.items()
                    }
                    self.compare("timeline, allreduce %s" % aims.size_name(count), calls, rounds,
                                 {"on_over_off": ("hvd_timeline", "hvd")})
        finally:
            for group in groups.values():
                group.close()

    def one_host(self, size):
        makers = {name: (lambda make=make: make(size)) for name, make in ONE_HOST.items()}
        makers["memcpy"] = contenders.memcpy
        if not any(self.wanted(part) for part in ("one_host", *(DETAILS if size == 4 else ()))):
            return
        groups = self.open(makers)
        try:
            if self.wanted("one_host"):
                self.matrix(groups, "one_host", size, self.sizes)
            if size == 4:
                self.details(groups["hvd"])
        finally:
            for group in groups.values():
                group.close()

    def two_hosts(self, size):
        if not self.wanted("two_hosts"):
            return
        try:
            hosts = contenders.TwoHosts()
        except Unavailable as why:
            log("TWO HOSTS LEFT OUT: %s" % why)
            self.unavailable["two_hosts"] = str(why)
            return
        groups = {}
        try:
            groups = self.open({
                "hvd": lambda: hosts.hvd(size),
                "hvd_local_off": lambda: hosts.hvd(size, {"HVD_LOCAL": "off"}, "hvd_local_off"),
                "gloo": lambda: hosts.gloo(size)})
            self.matrix(groups, "two_hosts", size, (8, MIB, 64 * MIB))
        finally:
            for group in groups.values():
                group.close()
            hosts.close()

    def transports(self, size):
        """Over loopback, and between two namespaces with half of the ranks each, without and with a delay."""
        for place, make in PLACES.items():
            if not self.wanted("transports") and not self.wanted(place):
                continue
            if place == "transports_delayed" and not self.only:
                continue  # where it is asked for: it takes its time
            try:
                hosts = make()
            except Unavailable as why:
                log("%s LEFT OUT: %s" % (place.upper(), why))
                self.unavailable[place] = str(why)
                continue
            groups = {}
            try:
                groups = self.open({name: (lambda make=make: make(hosts, size))
                                    for name, make in TRANSPORTS.items()
                                    if not self.contenders or name in self.contenders})
                if groups:
                    self.matrix(groups, place, size, self.sizes, next(iter(groups)),
                                10 if place == "transports_delayed" else 1000)
            finally:
                for group in groups.values():
                    group.close()
                hosts.close()

    def raw(self, size):
        if not self.wanted("raw"):
            return
        for backend, (base, makers) in RAW.items():
            groups = self.open({name: (lambda make=make: make(size)) for name, make in makers.items()})
            try:
                if base in groups and len(groups) > 1:
                    self.matrix(groups, "raw_" + backend, size, self.sizes, base)
                else:
                    log("RAW %s LEFT OUT: %s" %
                        (backend, ", ".join("%s: %s" % (name, self.unavailable[name])
                                            for name in makers if name in self.unavailable)))
            finally:
                for group in groups.values():
                    group.close()

    def run(self, ranks):
        for size in ranks:
            self.one_host(size)
        for size in ranks:
            self.transports(size)
        self.raw(4)
        self.timeline(4)
        self.two_hosts(4)
        result = {
            "collectives": {
                "settings": {"quick": self.quick, "seconds": round(time.monotonic() - self.began)},
                "unavailable": self.unavailable, **self.report
            }
        }
        result["aims"] = aims.judge(result["collectives"])
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", default=os.environ.get("HVD_BENCH_QUICK") == "1")
    parser.add_argument("--only", default="",
                        help="one_host, variables, small, check, timeline, two_hosts, raw, transports or " +
                        "one of its places: " + ", ".join(PLACES))
    parser.add_argument("--ranks", default="", help="for one host; default 2,4,8 (quick: 4)")
    parser.add_argument("--sizes", default="", help="bytes, separated by commas")
    parser.add_argument("--rounds", type=int, help="of each size; as many as there are in %d s" % ENOUGH_S)
    parser.add_argument("--contenders", default="", help="of transports: " + ", ".join(TRANSPORTS))
    parser.add_argument("--readme", action="store_true", help="the aims as the README's table has them")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended on the way out
    bench = Bench(arguments.quick, [part for part in arguments.only.split(",") if part])
    if arguments.sizes:
        bench.sizes = [int(text) for text in arguments.sizes.split(",")]
    bench.contenders.update(name for name in arguments.contenders.split(",") if name)
    if arguments.rounds is not None:
        bench.plan = {size: (samples, batch, arguments.rounds)
                      for size, (samples, batch, _) in bench.plan.items()}
    default = "4" if arguments.quick else "2,4,8"
    try:
        result = bench.run([int(text) for text in (arguments.ranks or default).split(",")])
    except Failed as why:
        raise SystemExit(str(why)) from None
    log("\n" + (aims.readme if arguments.readme else aims.table)(result["aims"]))
    log("\n".join(aims.naming(result["collectives"])))
    log(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
