"""The example with sharded moments ends with the same accuracy and weights, bit for bit, whether it loses a
worker or not (E1)."""

import os
import re
import subprocess
import unittest

BIN = os.environ.get("HVD_TEST_BIN") or os.path.join(os.getcwd(), "bin")
EXAMPLE = os.environ["HVD_TEST_EXAMPLE"]
PATIENCE = float(os.environ.get("HVD_TEST_PATIENCE", "1"))


class ShardedAdam(unittest.TestCase):
    def train(self, *arguments):
        """The lines "rank R of N: ..." of a job of four, as (size, accuracy, weights)."""
        command = [
            os.path.join(BIN, "hvdrun"), "-np", "4", "--min-np", "2", "-H", "localhost:4", "--set",
            "restart=false", "--"
        ]
        job = subprocess.run(command + [EXAMPLE, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                             text=True, timeout=120 * PATIENCE)
        output = job.stdout + job.stderr
        self.assertEqual(job.returncode, 0, output)
        line = r"rank \d+ of (\d+): loss [0-9.]+, test accuracy ([0-9.]+), weights ([0-9a-f]{16})"
        found = re.findall(line, output)
        self.assertTrue(found, output)
        return [(int(size), float(accuracy), weights) for size, accuracy, weights in found]

    def test_E1_a_worker_is_killed(self):
        whole = self.train("150")
        self.assertEqual([size for size, _, _ in whole], [4] * 4)
        lost = self.train("150", "60")
        self.assertEqual([size for size, _, _ in lost], [3] * 3)
        ends = {end[1:] for end in whole + lost}
        self.assertEqual(len(ends), 1, ends)
        self.assertGreater(ends.pop()[0], 0.75)


if __name__ == "__main__":
    unittest.main()
