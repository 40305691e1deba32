"""The library's ABI beside the one that was recorded: abidiff_test.py LIBRARY [--record]
Additions are fine; a change of anything that a program may have been built against fails, and says what changed."""
import shutil
import subprocess
import sys
from pathlib import Path

LIBRARY = sys.argv[1]
HERE = Path(__file__).resolve().parent
RECORD = HERE / "recorded" / "libhvd.abi"
HEADERS = HERE.parents[1] / "include"
# Of the opaque types (hvd_context …) only the public headers count.
PUBLIC = ("--headers-dir", str(HEADERS))
REMOVED_OR_CHANGED = 8  # abidiff's bit for incompatible changes; 4 alone: there are changes, additions for example


def main():
    if shutil.which("abidiff") is None:
        print("SKIPPED: abidiff (package abigail-tools) is not installed")
        return 77
    if "--record" in sys.argv:
        RECORD.parent.mkdir(exist_ok=True)
        return subprocess.run(("abidw", "--no-corpus-path", "--no-comp-dir-path", "--short-locs", "--drop-private-types",
                               *PUBLIC, "--out-file", str(RECORD), LIBRARY), timeout=120).returncode
    result = subprocess.run(("abidiff", "--no-added-syms", "--drop-private-types", "--headers-dir1", str(HEADERS),
                             "--headers-dir2", str(HEADERS), str(RECORD), LIBRARY),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    print(result.stdout)
    return 1 if result.returncode & (REMOVED_OR_CHANGED | 1 | 2) else 0


if __name__ == "__main__":
    sys.exit(main())
