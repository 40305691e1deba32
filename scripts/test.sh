#!/usr/bin/env bash
# Installs what is missing, builds the release preset, runs every test. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build test demo bindings
# Where packages start no daemons.
[ -d /run/systemd/system ] || scripts/install-deps.sh slurm
cmake --preset release
cmake --build --preset release
ctest --preset release -j2 --output-on-failure "$@"
