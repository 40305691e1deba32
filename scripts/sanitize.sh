#!/usr/bin/env bash
# Builds with AddressSanitizer and UndefinedBehaviorSanitizer, then with ThreadSanitizer, and runs the unit
# tests and the scenarios under each: scripts/sanitize.sh [--quick|--short] [asan] [tsan] [-- ctest arguments]
# Or scripts/sanitize.sh --few: of the quick lane what copies, shares and reads bytes, under the first two in
# the fuzzers' build; then what has most to do with threads, under the third. Rooms are compiled as one.
# --short: of the scenarios those of the default lane under asan alone, and under tsan of the quick lane what
# has threads. --quick: under asan the quick lane as well.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build test

export HVD_TEST_PATIENCE=${HVD_TEST_PATIENCE:-4}  # checked code takes its time
export ASAN_OPTIONS="detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="second_deadlock_stack=1:history_size=7:${TSAN_OPTIONS:-}"

# some PRESET TEST...
some() {
  local preset=$1
  shift
  cmake --build "build/$preset" --target "$@"
  ctest --test-dir "build/$preset" -j "${HVD_TEST_JOBS:-$(nproc)}" --output-on-failure --no-tests=error \
    -R "^($(IFS='|' && echo "$*"))\$"
}
if [ "${1:-}" = --few ]; then
  scripts/install-deps.sh fuzz
  cmake --preset fuzz >/dev/null
  some fuzz state_test hidden_commit_test sync_test state_device_test shards_device_test shard_rot_test feed_test \
    wire_messages_test wire_strangers_test wire_channel_test collective_engine_failure_test local_messages_test \
    kit_links_test
  cmake --preset tsan -DHVD_UNITY=ON -DHVD_BUILD_EXAMPLES=OFF -DHVD_BUILD_BENCH=OFF >/dev/null
  some tsan state_device_test hidden_commit_test collective_meeting_test collective_engine_failure_test \
    local_messages_test kit_links_test
  exit
fi

lane=
case "${1:-}" in --quick | --short) lane=${1#--} && shift ;; esac
presets=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do presets+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#presets[@]} -gt 0 ] || presets=(asan tsan)
for preset in "${presets[@]}"; do
  cmake --preset "$preset" -DHVD_UNITY=OFF -DHVD_BUILD_EXAMPLES=OFF -DHVD_BUILD_BENCH=OFF
  filter=(-L 'unit|scenario')
  # No api_fork under asan: that of GCC 12 takes no lock before a fork, and a child may wait for it for ever.
  if [ -n "$lane" ] && [ "$preset" = tsan ]; then
    filter=(-L '^quick$' -E 'histor|membership|matcher|sampler_test|_plan_|hvdrun|merge|^fuzz_|^nccl|^wire_schema')
  elif [ "$lane" = quick ]; then
    filter=(-L '^quick$' -E 'membership_history|^api_fork')
  elif [ "$lane" = short ]; then
    filter=(-L 'unit|scenario' -LE '^full$' -E '^api_collectives|^nccl_failure|^api_fork')
  elif [ "$preset" = asan ]; then
    filter+=(-E '^api_fork')
  fi
  cmake --build --preset "$preset"
  ctest --preset "$preset" -j "${HVD_TEST_JOBS:-$(nproc)}" "${filter[@]}" "$@"
done
