#!/usr/bin/env bash
# Fuzzes what reads bytes from elsewhere (tests/fuzz), by libFuzzer under AddressSanitizer and UBSan:
#   scripts/fuzz.sh [--seconds N] [--seed S] [NAME...]    N seconds each (60), all fuzzers or the named ones
# As many run at a time as there are cores.
# What a fuzzer finds lies in build/fuzz/found; `build/release/fuzz/fuzz_NAME FILE` shows it without clang.
# Mend the cause and add the input to the fuzzer's seeds. FUZZ_CC and FUZZ_CXX: other compilers than clang-14.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=60 seed=0
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    -*) sed -n '2,5s/^# //p' "$0"; exit 2 ;;
    *) break ;;
  esac
done
scripts/install-deps.sh build test fuzz
cmake --preset fuzz -DCMAKE_C_COMPILER="${FUZZ_CC:-clang-14}" -DCMAKE_CXX_COMPILER="${FUZZ_CXX:-clang++-14}" >/dev/null
cmake --build --preset fuzz

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for program in build/fuzz/fuzz/fuzz_*; do names+=("${program##*/fuzz_}"); done
fi
found=$PWD/build/fuzz/found
mkdir -p "$found"
# The corpus grows from the seeds in a folder that is thrown away: what it finds belongs into the seeds.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export found work seconds seed
export ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1:${ASAN_OPTIONS:-}" UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"

fuzz_one() {
  local name=$1 log=$work/$1.log status=0
  HVD_FUZZ_SEEDS=$work/$name.corpus TMPDIR=$work build/fuzz/fuzz/fuzz_"$name" -max_total_time="$seconds" -seed="$seed" -max_len=4096 \
    -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$found/$name-" "$work/$name.corpus" \
    >"$log" 2>&1 || status=$?
  local runs edges
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
  printf '%-12s %10s inputs %6s edges  %s\n' "$name" "${runs:-?}" "${edges:-?}" "$([ $status -eq 0 ] && echo ok || echo FOUND)"
  [ $status -eq 0 ] || { grep -vE '^#|^INFO|^stat::' "$log" | tail -60; return 1; }
}
export -f fuzz_one
mkdir -p $(printf "$work/%s.corpus " "${names[@]}")
printf '%s\0' "${names[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'fuzz_one "$1"' fuzz
