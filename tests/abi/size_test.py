"""libhvd.so stays small as a release is built: size_test.py LIBRARY STRIP MOST [REASON]. With a reason why
this build is no measure it is skipped. docs/packages.md says what makes it grow."""
import os
import subprocess
import sys
import tempfile

library, strip, most, *reason = sys.argv[1:]
if any(reason):
    print(f"SKIPPED: {reason[0]}")
    sys.exit(77)
with tempfile.TemporaryDirectory() as directory:
    stripped = os.path.join(directory, "libhvd.so")
    subprocess.run([strip, "--strip-unneeded", library, "-o", stripped], check=True)
    size = os.path.getsize(stripped)
print(f"{library} has {size} bytes without its symbols, of {most} at most")
sys.exit(size > int(most))
