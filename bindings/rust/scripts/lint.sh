#!/usr/bin/env bash
# Format, clippy and documentation, all without a warning; and the committed bindings.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
cargo fmt --manifest-path burn/Cargo.toml --check
cargo clippy --locked --offline --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --offline --no-deps
python3 ../../scripts/api/make.py --check
