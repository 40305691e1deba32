#!/usr/bin/env bash
# Builds and runs the benchmarks, writes out/bench.json and prints a table: scripts/bench.sh [NAME...]
# A benchmark is a program build/release/bin/*_bench that needs no arguments and prints, besides what it likes,
# one or more lines that are JSON objects: {"measurement": {"metric": value, ...}, ...}.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build test
cmake --preset release
cmake --build --preset release
mkdir -p out
exec python3 scripts/bench.py build/release/bin out/bench.json "$@"
