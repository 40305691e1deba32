#!/usr/bin/env bash
# Installs what is missing, builds the release preset, runs every test. Arguments go to ctest.
# Elastic jobs on MPICH need version 5, which Debian 12 does not have: for these tests PyPI's goes to build/mpich. Where
# PyPI can't be reached they are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build test demo bindings
# Where packages start no daemons.
[ -d /run/systemd/system ] || scripts/install-deps.sh slurm
mpich=$PWD/build/mpich
if [ ! -x "$mpich/bin/mpicc" ]; then
  { /usr/bin/python3 -m venv "$mpich" && "$mpich/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2; } ||
    { echo "MPICH 5 could not be installed: tests of elastic jobs on MPICH are left out" >&2; rm -rf "$mpich"; }
fi
compiler=
if [ -x "$mpich/bin/mpicc" ]; then compiler=$mpich/bin/mpicc; fi
cmake --preset release -DHVD_TEST_MPICH_COMPILER="$compiler"
cmake --build --preset release
ctest --preset release -j2 --output-on-failure "$@"
