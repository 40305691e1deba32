#!/usr/bin/env bash
# Builds and runs the benchmarks, writes out/bench.json and out/bench.svg and prints tables:
# scripts/bench.sh [--quick] [NAME...]
# A benchmark is a program build/release/bin/*_bench that needs no arguments and prints, besides what it
# likes, one or more lines that are JSON objects: {"measurement": {"metric": value, ...}, ...}. Open MPI is
# measured beside libhvd where it can be had; two hosts (network namespaces) need root.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh build test
scripts/install-deps.sh bench || echo "without Open MPI: it could not be installed" >&2
cmake --preset release
cmake --build --preset release
mkdir -p out
exec python3 scripts/bench.py build/release/bin out/bench.json "$@"
