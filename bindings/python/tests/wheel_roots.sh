#!/usr/bin/env bash
# Makes the wheel of a build tree and tries it on a bare root, with Debian's Python and those of pyenv:
# wheel_roots.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/../../.."
wheel=$(scripts/wheels.sh "${1:?wheel_roots.sh needs the build directory}")
pythons=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[0-9]* 2>/dev/null | tr '\n' ' ' || true)
HVD_TEST_PYTHONS=$pythons exec scripts/roots.sh "$wheel" bookworm
