#!/usr/bin/env bash
# Builds with AddressSanitizer and UndefinedBehaviorSanitizer, then with ThreadSanitizer, and runs the unit
# tests and the scenarios under each: scripts/sanitize.sh [asan] [tsan] [-- ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build test

presets=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do presets+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#presets[@]} -gt 0 ] || presets=(asan tsan)

export ASAN_OPTIONS="detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="second_deadlock_stack=1:history_size=7:${TSAN_OPTIONS:-}"
[ ! -f tests/tsan.supp ] || TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:$TSAN_OPTIONS"
[ ! -f tests/lsan.supp ] || export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:${LSAN_OPTIONS:-}"

for preset in "${presets[@]}"; do
  cmake --preset "$preset" -DHVD_BUILD_EXAMPLES=OFF -DHVD_BUILD_BENCH=OFF
  cmake --build --preset "$preset"
  ctest --preset "$preset" -j2 -L 'unit|scenario' --output-on-failure "$@"
done
