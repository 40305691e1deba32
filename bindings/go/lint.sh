#!/usr/bin/env bash
# gofmt and go vet, without a word.
set -euo pipefail
cd "$(dirname "$0")"
unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || { echo "gofmt would change: $unformatted" >&2; exit 1; }
go vet ./...
