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

# Not the release, which compiles several files at a time.
build=${BUILD_DIR:-build/debug}
[ -f "$build/compile_commands.json" ] || cmake --preset debug
# Sources include headers that the build generates.
cmake --build "$build" --target hvd_core
# A few files a process: clang-tidy gives its memory back only when it ends.
git ls-files -z -- 'src/*.cc' | xargs -0 -n 4 -P "$(nproc)" clang-tidy -p "$build" --quiet --warnings-as-errors='*'
