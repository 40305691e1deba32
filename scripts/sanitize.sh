#!/usr/bin/env bash
# Builds with AddressSanitizer and UndefinedBehaviorSanitizer, then with ThreadSanitizer, and runs the unit
# tests and the scenarios under each: scripts/sanitize.sh [--short] [asan] [tsan] [-- ctest arguments]
# --short: of the scenarios those of the default lane under asan alone, and under tsan of the quick lane what
# has threads.
# Or scripts/sanitize.sh --quick: the quick lane under the first two, in the fuzzers' build, without pure
# histories. Then most of what has threads runs under the third. Rooms are compiled as one.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build test

export HVD_TEST_PATIENCE=${HVD_TEST_PATIENCE:-4}  # checked code takes its time
export ASAN_OPTIONS="detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="second_deadlock_stack=1:history_size=7:${TSAN_OPTIONS:-}"

if [ "${1:-}" = --quick ]; then
  [ $# -eq 1 ] || { echo "$0: --quick and '$2': expected --quick alone" >&2; exit 2; }
  jobs=${HVD_TEST_JOBS:-$((2 * $(nproc)))}  # they wait a lot
  scripts/install-deps.sh fuzz
  cmake --preset fuzz >/dev/null
  cmake --build build/fuzz
  ctest --test-dir build/fuzz -j "$jobs" --output-on-failure --no-tests=error -L '^quick$' \
    -E 'histor|takeover|^api_fork|^fuzz_'
  # Left out of the quick lane: what is pure, and what takes minutes here.
  threaded=(base_loop_test base_life_test base_queued_log_test timeline_test wire_channel_test wire_strangers_test
    backend_board_test local_host_group_test local_instance_test local_many_test local_messages_test
    selection_composite_test kit_links_test kit_meeting_test collective_meeting_test collective_messages_test
    collective_engine_failure_test state_test state_device_test hidden_commit_test session_test feed_server_test
    job_test commit_job_test driver_job_test launch_stopped_test launch_worker_output_test http_server_test)
  cmake --preset tsan -DHVD_UNITY=ON -DHVD_BUILD_EXAMPLES=OFF -DHVD_BUILD_BENCH=OFF >/dev/null
  cmake --build build/tsan --target "${threaded[@]}"
  ctest --test-dir build/tsan -j "$jobs" --output-on-failure --no-tests=error \
    -R "^($(IFS='|' && echo "${threaded[*]}"))\$"
  exit
fi

short=
if [ "${1:-}" = --short ]; then short=1 && shift; fi
presets=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do presets+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#presets[@]} -gt 0 ] || presets=(asan tsan)
for preset in "${presets[@]}"; do
  cmake --preset "$preset" -DHVD_UNITY=OFF -DHVD_BUILD_EXAMPLES=OFF -DHVD_BUILD_BENCH=OFF
  filter=(-L 'unit|scenario')
  # No api_fork under asan: that of GCC 12 takes no lock before a fork, and a child may wait for it for ever.
  if [ -n "$short" ] && [ "$preset" = tsan ]; then
    filter=(-L '^quick$' -E 'histor|membership|matcher|sampler_test|_plan_|hvdrun|merge|^fuzz_|^nccl|^wire_schema')
  elif [ -n "$short" ]; then
    filter=(-L 'unit|scenario' -LE '^full$' -E '^api_collectives|^nccl_failure|^api_fork')
  elif [ "$preset" = asan ]; then
    filter+=(-E '^api_fork')
  fi
  cmake --build --preset "$preset"
  ctest --preset "$preset" -j "${HVD_TEST_JOBS:-$(nproc)}" "${filter[@]}" "$@"
done
