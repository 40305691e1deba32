#!/usr/bin/env bash
# Compiles for aarch64 on another processor, and tries what QEMU can run of it: scripts/emulated.sh
# [BUILD_DIR] (build/aarch64). Pure tests, collectives in one process, and jobs of hvdrun, among them one that
# loses a worker. Against the C library of Debian 11 (scripts/sysroot.sh), as a wheel. Programs that are
# started there are emulated too, by a registration (binfmt_misc) in a namespace of this script's, which ends
# with it: kernels have that since 6.7. Status 77: the compiler, the sysroot or the registration can't be had.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/aarch64}
sysroot=$PWD/build/sysroots/arm64
scripts/install-deps.sh build emulated >&2
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do
  command -v $tool >/dev/null || { echo "needs $tool" >&2; exit 77; }
done
scripts/sysroot.sh arm64 "$sysroot"
# Without base_life_test: the emulator has no robust futexes.
tests=(base_digest_test base_options_test base_loop_test numeric_dtype_test numeric_reduce_test
       membership_test session_core_test wire_messages_test wire_channel_test local_stream_test local_box_test
       collective_matcher_test sync_plan_test parity_test)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake -S . -B "$build" -G Ninja --toolchain "$PWD/cmake/sysroot.cmake" -DHVD_SYSROOT="$sysroot" \
  -DHVD_SYSROOT_PROCESSOR=aarch64 -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib -DHVD_COMPILER_CACHE=ON \
  -DHVD_BUILD_TESTS=ON -DHVD_BUILD_EXAMPLES=ON -DHVD_BUILD_BENCH=OFF \
  -DPython3_EXECUTABLE=/usr/bin/python3 -DPython3_INCLUDE_DIR="$sysroot/usr/include/python3.11" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
cmake --build "$build" --target runtime "${tests[@]}" minimal collectives scenario_worker >"$work/log" 2>&1 ||
  { tail -50 "$work/log" >&2; exit 1; }

# Runs in the namespaces: BUILD TEST...
inside='
build=$1 log=$2
shift 2
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>/dev/null && [ -w /proc/sys/fs/binfmt_misc/register ] || exit 77
elf="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
echo ":qemu-aarch64:M::$elf:$mask:$(command -v qemu-aarch64-static):F" >/proc/sys/fs/binfmt_misc/register || exit 77
# Emulated code is many times slower.
export HVD_OPERATION_TIMEOUT=120 HVD_HEARTBEAT_TIMEOUT=60 HVD_START_TIMEOUT=120 HVD_TEST_PATIENCE=10
run() {
  timeout 600 "$@" >"$log" 2>&1 || { echo "$*: status $?" >&2; tail -40 "$log" >&2; exit 1; }
}
for test; do
  run "$build/bin/$test"
  echo "$test: $(grep -E "^\[  PASSED" "$log")"
done
run "$build/bin/minimal"
grep "rank 0 of 1: y = 2.00x + 1.00" "$log"
run "$build/bin/hvdrun" -np 2 -H localhost:2 -- "$build/bin/minimal"
grep "rank [01] of 2: y = 2.00x + 1.00" "$log"
[ "$(grep -c "rank [01] of 2: y = 2.00x + 1.00" "$log")" = 2 ]
for local in on off; do
  HVD_LOCAL=$local run "$build/bin/hvdrun" -np 2 -H localhost:2 --set restart=false -- "$build/bin/collectives"
  echo "all collectives, two workers, local $local"
done
HVD_TEST_BIN=$build/bin run python3 -B tests/scenarios/test_failures.py Death.test_F1_sigkill_of_the_middle
echo "a job that loses a worker"
'
export QEMU_LD_PREFIX=$sysroot HVD_PLUGIN_PATH=$PWD/$build/lib/hvd/1
status=0
unshare --user --map-root-user --mount --pid --fork --mount-proc \
  bash -euc "$inside" bash "$PWD/$build" "$work/log" "${tests[@]}" || status=$?
[ $status != 77 ] || echo "this kernel has no binfmt_misc for namespaces" >&2
exit $status
