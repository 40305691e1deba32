#!/usr/bin/env bash
# Makes hvd-sys/src/bindings.rs from the C headers; the result is committed, so that nobody who builds needs
# bindgen or libclang (Debian package bindgen). --check: says whether the committed file is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
out=hvd-sys/src/bindings.rs
made=$(mktemp)
trap 'rm -f "$made"' EXIT
bindgen hvd-sys/wrapper.h --allowlist-function 'hvd_.*' --allowlist-type 'hvd_.*' --allowlist-var 'HVD_.*' \
  --no-prepend-enum-name --no-doc-comments --rust-target 1.47 --size_t-is-usize \
  -- -I../../include -std=c99 |
  # The generator's version is no news to anybody. In C an enumerator is an int.
  sed -e '/^\/\* automatically generated/c\// Made from hvd.h and driver.h by scripts/bindings.sh: do not edit.' \
      -e '/^pub type _bindgen_ty_/s/c_uint/c_int/' >"$made"
if [ "${1:-}" = --check ]; then
  cmp "$made" "$out"
else
  cp "$made" "$out"
fi
