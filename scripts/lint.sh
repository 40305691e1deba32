#!/usr/bin/env bash
# Checks format (clang-format) and code (clang-tidy): scripts/lint.sh [--format|--fix]
# --format checks the format alone; --fix formats in place. BUILD_DIR: where compile_commands.json is.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build lint

. scripts/formatted.sh
mapfile -t sources < <(git ls-files -- "${formatted[@]}")
if [ "${1:-}" = --fix ]; then
  clang-format -i "${sources[@]}"
  exit
fi
clang-format --dry-run -Werror "${sources[@]}"
[ "${1:-}" != --format ] || exit 0

# A tree of its own, in which each file is compiled alone and by its own includes: clang-tidy can't read GCC's
# precompiled headers. Only the headers that the build generates are made there.
build=${BUILD_DIR:-build/lint}
[ -f "$build/compile_commands.json" ] ||
  cmake --preset debug -B "$build" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DHVD_BUILD_TESTS=OFF \
    -DHVD_BUILD_EXAMPLES=OFF -DHVD_BUILD_BENCH=OFF
cmake --build "$build" --target hvd_schema_control hvd_schema_matching
# A few files a process: clang-tidy gives its memory back only when it ends.
git ls-files -z -- 'src/*.cc' |
  xargs -0 -n 4 -P "$(nproc)" clang-tidy -p "$build" --quiet --warnings-as-errors='*' \
    --extra-arg=-Wno-unknown-warning-option
