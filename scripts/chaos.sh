#!/usr/bin/env bash
# Kills, stops, starves and confuses real jobs, and checks what they promise (docs/chaos.md):
#   scripts/chaos.sh [--minutes N] [--seed S] [--backends auto,gloo:off] [--json FILE]
# Needs the release build with tests; builds it if it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -x build/release/bin/scenario_worker ]; then
  scripts/install-deps.sh build test
  cmake --preset release
  cmake --build --preset release
fi
scripts/install-deps.sh chaos
export HVD_TEST_BIN=$PWD/build/release/bin
exec python3 -B tests/scenarios/chaos.py "$@"
