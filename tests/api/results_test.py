"""The results of collectives do not depend on the backend: results_test.py HVDRUN PROGRAM BACKEND...

Runs PROGRAM with each backend, and with the first one also without shared memory and on two hosts, and
compares what the ranks have written. Exits with 1 and the first lines that differ.
"""

import os
import subprocess
import sys
import tempfile

PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))  # stretches deadlines, for busy machines

RANKS = 4


def results(hvdrun, program, backend, local, hosts):
    """The lines of each rank."""
    with tempfile.TemporaryDirectory(prefix="hvd-results-") as folder:
        job = subprocess.run([
            hvdrun, "--set", "restart=false", "--set", "elastic_timeout=60", "--local-hosts", "-H", hosts,
            "-np",
            str(RANKS), "-x", "HVD_TEST_RESULTS=" + folder, "-x", "HVD_BACKEND=" + backend, "-x",
            "HVD_LOCAL=" + local, "-x", "HVD_OPERATION_TIMEOUT=60", "--", program
        ], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=280 * PATIENCE)
        if job.returncode != 0:
            sys.exit("%s, local %s, %s: hvdrun ended with %d\n%s" %
                     (backend, local, hosts, job.returncode, job.stdout[-3000:]))
        lines = []
        for rank in range(RANKS):
            with open(os.path.join(folder, str(rank))) as file:
                lines.append(file.read().splitlines())
        return lines


def main():
    hvdrun, program, *backends = sys.argv[1:]
    runs = [(backend, "auto", "h:4") for backend in backends]
    runs += [(backends[0], "off", "h:4"), (backends[0], "on", "a:2,b:2")]
    runs += [(backend, "on", "h:4") for backend in backends[1:]]
    expected = None
    for run in runs:
        got = results(hvdrun, program, *run)
        if expected is None:
            expected = got
            if not all(len(lines) > 100 for lines in got):
                sys.exit("%s: only %s lines" % (run, [len(lines) for lines in got]))
        for rank in range(RANKS):
            if got[rank] == expected[rank]:
                continue
            differ = ["%s   but   %s" % pair for pair in zip(expected[rank], got[rank]) if pair[0] != pair[1]]
            sys.exit("rank %d has other results with %s than with %s (%d of %d lines):\n%s" % (
                rank, run, runs[0], len(differ), len(expected[rank]), "\n".join(differ[:10])))
        print("%s: %d results on each of %d ranks" % (run, len(got[0]), RANKS), flush=True)
    if len(backends) < 2:
        print("only %s was compared with itself: no other backend for host memory is built" % backends[0])


if __name__ == "__main__":
    main()
