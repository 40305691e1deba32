"""Builds the wheel of package hvd, which carries libhvd.so, hvd-driver.so, the modules, hvd-guard and hvdrun.

As a build backend (pip install bindings/python, pip wheel bindings/python) it builds the library first, in
bindings/python/build or, with --config-settings build-dir=DIR, in that directory. As a program,
`wheel.py BUILD_DIR OUTPUT_DIR [MODULE...]` packs what is built already; CMake's target python_wheel calls it
so. Of the modules it packs those that are named, or all: scripts/wheels.sh leaves out those that need a
system's libraries.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VERSION = re.search(r'__version__ = "(.*?)"', (HERE / "hvd" / "__init__.py").read_text()).group(1)
INFO = f"hvd-{VERSION}.dist-info"
METADATA = f"""Metadata-Version: 2.1
Name: hvd
Version: {VERSION}
Summary: Elastic distributed training: libhvd for Python
Requires-Python: >=3.10
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Provides-Extra: jax
Requires-Dist: jax>=0.6; extra == "jax"
Provides-Extra: lightgbm
Requires-Dist: lightgbm>=4; extra == "lightgbm"
Provides-Extra: lightning
Requires-Dist: lightning>=2; extra == "lightning"
Provides-Extra: ray
Requires-Dist: ray>=2; extra == "ray"
Provides-Extra: spark
Requires-Dist: pyspark>=3.4; extra == "spark"
Provides-Extra: tensorflow
Requires-Dist: tensorflow>=2.15; extra == "tensorflow"
Provides-Extra: torch
Requires-Dist: torch>=1.13; extra == "torch"
"""
# A wheel finds what it carries beside itself, and looks for nothing below a prefix of this machine.
CONFIGURE = [
    "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_LIBDIR=lib", "-DHVD_SEARCH_PREFIX=OFF",
    "-DHVD_BUILD_TESTS=OFF", "-DHVD_BUILD_EXAMPLES=OFF", "-DHVD_BUILD_BENCH=OFF"
]
ENTRY_POINTS = "[console_scripts]\nhvdrun = hvd.driver:main\n"


def tag_of(build):
    """The wheel's tag: of this machine, or of the processor that cmake/sysroot.cmake compiled for."""
    platform = sysconfig.get_platform()
    cache = Path(build) / "CMakeCache.txt"
    across = re.search(r"^HVD_SYSROOT_PROCESSOR:\w+=(.+)$", cache.read_text(),
                       re.MULTILINE) if cache.exists() else None
    if across:
        platform = "linux-" + across.group(1)
    return "py3-none-" + platform.replace("-", "_").replace(".", "_")


def info_files(tag):
    """Name and text of what lies in dist-info, but for RECORD."""
    wheel = f"Wheel-Version: 1.0\nGenerator: libhvd\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return {"METADATA": METADATA, "WHEEL": wheel, "entry_points.txt": ENTRY_POINTS,
            "LICENSE": (ROOT / "LICENSE").read_text()}


def native_files(build, staging):
    """(file, path below hvd/_native) of what a job needs, from CMake's installation into `staging`."""
    subprocess.run(["cmake", "--install", str(build), "--prefix", str(staging), "--strip"], check=True,
                   stdout=subprocess.DEVNULL)
    for path in sorted(staging.rglob("*")):
        below = path.relative_to(staging)
        if re.fullmatch(r"libhvd\.so\.\d+", path.name):
            yield path.resolve(
            ), below  # a wheel has no links: the library bears the name that programs ask for
        elif path.is_file() and (below == Path("bin/hvdrun") or
                                 re.fullmatch(r"hvd/\d+", str(Path(*below.parts[-3:-1])))):
            if "include" not in below.parts and "cmake" not in below.parts:
                yield path, below


def pack(build, output, modules=None):
    """The wheel's file name. modules: names of those to pack; None: all."""
    tag = tag_of(build)
    name = f"hvd-{VERSION}-{tag}.whl"
    records = []
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(
            os.path.join(output, name), "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(path, data, executable=False):
            entry = zipfile.ZipInfo(str(path), (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{path},sha256={digest},{len(data)}\n")

        for path in sorted((HERE / "hvd").rglob("*")):
            if path.suffix in (".py", ".cc") or path.name == "py.typed":
                add(path.relative_to(HERE), path.read_bytes())
        add("hvd/_native/include/hvd/hvd.h", (ROOT / "include" / "hvd" / "hvd.h").read_bytes())  # for hvd.jax
        found = False
        for path, below in native_files(build, Path(directory)):
            module = re.fullmatch(  # and what goes with one
                r"libhvd_(\w+)\.so|hvd-(pmix)-server|hvd-(mpi)-helper|hvd-(lightgbm)\.so|(\w+)\.manifest",
                below.name)
            if modules is not None and module and next(filter(None, module.groups())) not in modules:
                continue
            found = found or below.name.startswith("libhvd.so")
            add(Path("hvd/_native") / below, path.read_bytes(), os.access(path, os.X_OK))
        calls = build / "bindings" / "python" / "_calls.abi3.so"
        if calls.exists():  # else the package goes through ctypes
            add("hvd/_calls.abi3.so", calls.read_bytes(), executable=True)
        operation = build / "bindings" / "python" / "_tensorflow.so"
        if operation.exists():  # else hvd.tensorflow goes through NumPy's functions in graphs
            add("hvd/_tensorflow.so", operation.read_bytes(), executable=True)
        if not found:
            raise SystemExit(f"{build} installs no libhvd.so")
        for path, text in info_files(tag).items():
            add(f"{INFO}/{path}", text.encode())
        wheel.writestr(f"{INFO}/RECORD", "".join(records) + f"{INFO}/RECORD,,\n")
    return name


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Without it pip would build the library, silently, to read a few short files out of the wheel."""
    info = Path(metadata_directory) / INFO
    info.mkdir()
    build = (config_settings or {}).get("build-dir") or HERE / "build"
    for path, text in info_files(tag_of(build)).items():
        (info / path).write_text(text)
    return INFO


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build = Path((config_settings or {}).get("build-dir") or HERE / "build")
    if not (build / "CMakeCache.txt").exists():
        subprocess.run([
            "cmake", "-S",
            str(ROOT), "-B",
            str(build), f"-DPython3_EXECUTABLE={sys.executable}", *CONFIGURE
        ], check=True)
    # The number is given: without one make starts everything at once, more than a machine's memory holds.
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
    subprocess.run(["cmake", "--build", str(build), "--parallel", jobs, "--target", "runtime"], check=True)
    return pack(build, wheel_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("hvd is built from a checkout of libhvd: pip wheel bindings/python")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    os.makedirs(sys.argv[2], exist_ok=True)
    print(os.path.join(sys.argv[2], pack(Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or None)))
