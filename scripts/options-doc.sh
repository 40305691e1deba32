#!/usr/bin/env bash
# Makes docs/options.md from hvd_options_describe: scripts/options-doc.sh [--check] [libhvd.so]
# --check: fails if docs/options.md is not what the library says.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/options_doc.py "$@"
