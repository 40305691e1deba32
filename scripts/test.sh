#!/usr/bin/env bash
# Installs what is missing, builds the release preset, runs tests: scripts/test.sh [quick|full|extended]
# [ctest's arguments]
#   quick   pure tests and tests in one process: a minute after the build
#   (none)  these, and jobs of real processes on one backend: under 5 minutes on two cores
#   full    all backends and MPIs, large tensors, churn, packages, bindings; then the format, 3 minutes of
#           chaos, a minute of each fuzzer and most of the quick lane under sanitizers. What CI runs.
#   extended  full, then clang-tidy, sanitizers at length, fuzzers for longer, the crates that build the
#             library, on bare Debian systems the wheel and the pages' lines, and aarch64 in an emulator
# Which test is in which lane: tests/lanes/lanes.cmake.in. HVD_TEST_PATIENCE=3 stretches every deadline by 3,
# for a busy machine. HVD_TEST_JOBS: tests at a time (in lane full the number of cores, else twice that: tests
# wait a lot).
set -euo pipefail
cd "$(dirname "$0")/.."
lane=default
extended=
case "${1:-}" in
  extended) lane=full extended=1; shift ;;
  quick | full) lane=$1; shift ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit ;;
esac

scripts/install-deps.sh build test
compiler=
if [ "$lane" != quick ]; then
  scripts/install-deps.sh demo bindings
fi
if [ "$lane" = full ]; then
  scripts/install-deps.sh roots chaos
  # Where packages start no daemons.
  [ -d /run/systemd/system ] || scripts/install-deps.sh slurm ssh
  # Elastic jobs on MPICH need version 5, which Debian 12 does not have: for these tests PyPI's goes to
  # build/mpich. Where PyPI can't be reached they are left out.
  mpich=$PWD/build/mpich
  if [ ! -x "$mpich/bin/mpicc" ]; then
    { /usr/bin/python3 -m venv "$mpich" && "$mpich/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2; } ||
      { echo "MPICH 5 could not be installed: tests of elastic jobs on MPICH are left out" >&2; rm -rf "$mpich"; }
  fi
fi
if [ -x build/mpich/bin/mpicc ]; then compiler=$PWD/build/mpich/bin/mpicc; fi

jobs=$(nproc)
case $lane in
  quick) filter=(-L '^quick$') jobs=$((2 * jobs)) ;;
  default) filter=(-LE '^full$') jobs=$((2 * jobs)) ;;
  full) filter=() ;;
esac
cmake --preset release -DHVD_TEST_MPICH_COMPILER="$compiler"
cmake --build --preset release
ctest --preset release -j "${HVD_TEST_JOBS:-$jobs}" "${filter[@]}" "$@"
[ "$lane" = full ] || exit 0

scripts/lint.sh --format
scripts/chaos.sh --minutes 3 --seed "${HVD_TEST_SEED:-1}"
scripts/fuzz.sh --seconds 60 --seed "${HVD_TEST_SEED:-1}"
scripts/sanitize.sh --quick
[ -n "$extended" ] || exit 0
scripts/lint.sh
# These compile the core one file at a time, the release a room at a time: each file has its own includes.
scripts/sanitize.sh --short
scripts/fuzz.sh --seconds 180 --seed $((${HVD_TEST_SEED:-1} + 1))
# The shipped library is smaller than the tested one.
cmake --preset package
cmake --build --preset package --target hvd
python3 -B tests/abi/size_test.py build/package/lib/libhvd.so strip 1800000
# The crates build the library themselves.
PATH=$PATH:$HOME/.cargo/bin
if command -v cargo >/dev/null; then
  CARGO_TARGET_DIR=$PWD/build/crates env -u HVD_LIBRARY \
    cargo test --manifest-path bindings/rust/Cargo.toml --locked --offline --features vendored
fi
# 77: no root can be made here.
wheel=$(scripts/wheels.sh)
pythons=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[0-9]* 2>/dev/null | tr '\n' ' ' || true)
HVD_TEST_PYTHONS=$pythons scripts/roots.sh "$wheel" || [ $? = 77 ]
scripts/readmes.sh || [ $? = 77 ]
scripts/emulated.sh || [ $? = 77 ]
