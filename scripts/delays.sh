#!/usr/bin/env bash
# Runs tests of the release build while their threads are delayed at random (tests/delays.c), in orders that
# are otherwise rare: scripts/delays.sh [seed...] (1 without arguments). One seed takes some 20 minutes.
# Left out are what builds or checks texts, other systems, what is not over within its time so delayed, and
# timeline_test, which fills its buffer faster than a thread empties it.
# Needs the release build with tests; builds it if it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 1
if [ ! -f build/release/bin/delays.so ]; then
  scripts/install-deps.sh build test
  cmake --preset release
  cmake --build --preset release
fi
texts='docs|lint|walls|exports|header|api_test|schema|abidiff|size_test|hardening|deploy|tools'
builds='debug_build|install|package|wheel|fuzz|examples?'
systems='srun|ssh|slurm|kubernetes|systemd|browser|footprint'
long='_large|divergence_test|(mpi|mpich)_collectives_test|scenario_limits|_delayed'
speed='timeline_test'
failed=0
for seed in "$@"; do
  echo "seed $seed"
  HVD_DELAYS_SEED=$seed LD_PRELOAD=$PWD/build/release/bin/delays.so ctest --test-dir build/release -j 6 \
    -LE frameworks -E "$texts|$builds|$systems|$long|$speed" --timeout 600 --output-on-failure || failed=1
done
exit "$failed"
