#!/usr/bin/env bash
# Records today's ABI for the tests of later versions: scripts/record-abi.sh
# Copies the public headers, examples/plugin and tests/abi/program.c into tests/abi/recorded/<major>.<minor>.
# It is run for each release, and again while that is being prepared; a version that has its tag is never
# recorded again.
set -euo pipefail
cd "$(dirname "$0")/.."
number() { sed -n "s/^#define HVD_VERSION_$1 //p" include/hvd/hvd.h; }
version=$(number MAJOR).$(number MINOR)
if [ -n "$(git tag --list "v$version.*")" ]; then
  echo "version $version has been released: its record stays (raise HVD_VERSION_MINOR first)" >&2
  exit 1
fi
target=tests/abi/recorded/$version
rm -rf "$target"
mkdir -p "$target/hvd" "$target/plugin"
cp include/hvd/*.h "$target/hvd"
cp examples/plugin/*.[ch] "$target/plugin"
cp tests/abi/program.c "$target"
echo "recorded $target: $(git ls-files -mo -- "$target" | wc -l) files differ from what is committed"
