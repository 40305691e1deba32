#!/usr/bin/env bash
# Format, clippy and documentation, all without a warning; and the committed bindings, where bindgen is there.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
cargo clippy --locked --offline --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --offline --no-deps
if [ "$(bindgen --version 2>/dev/null)" = "bindgen 0.60.1" ]; then # others write the same things differently
  scripts/bindings.sh --check
fi
