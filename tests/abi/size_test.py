"""libhvd.so stays small as a release is built: size_test.py LIBRARY STRIP [REASON]. With a reason why this build
is no measure it is skipped."""
import os
import subprocess
import sys
import tempfile

# docs/packages.md says what makes it grow.
MOST = 1_800_000

library, strip, *reason = sys.argv[1:]
if reason:
    print(f"SKIPPED: {reason[0]}")
    sys.exit(77)
with tempfile.TemporaryDirectory() as directory:
    stripped = os.path.join(directory, "libhvd.so")
    subprocess.run([strip, "--strip-unneeded", library, "-o", stripped], check=True)
    size = os.path.getsize(stripped)
print(f"{library} has {size} bytes without its symbols, of {MOST} at most")
sys.exit(size > MOST)
