#!/usr/bin/env bash
# Installs frameworks of PyPI's into build/frameworks and runs the tests of their bindings against build/release:
# scripts/frameworks.sh [jax|lightgbm|tensorflow|torch]... (jax and lightgbm if none is named). scripts/test.sh alone never does:
# they are hundreds of megabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
frameworks=("$@")
[ $# -gt 0 ] || frameworks=(jax lightgbm)
for framework in "${frameworks[@]}"; do
  case $framework in
    jax | lightgbm | tensorflow | torch) ;;
    *) echo "$0: '$framework': expected jax, lightgbm, tensorflow or torch" >&2; exit 2 ;;
  esac
done
[ -d build/release ] || { echo "$0: build the release preset first" >&2; exit 1; }
python=${HVD_PYTHON:-python3}
[ -x build/frameworks/bin/python ] || "$python" -m venv build/frameworks
build/frameworks/bin/pip install --quiet --disable-pip-version-check numpy pytest "${frameworks[@]/#tensorflow/tensorflow-cpu}" ||
  { echo "$0: ${frameworks[*]} could not be installed: their tests are left out" >&2; exit 0; }
export HVD_PYTHON=$PWD/build/frameworks/bin/python
for framework in "${frameworks[@]}"; do
  name=python_$framework
  [ "$framework" != torch ] || name=python_binding
  ctest --preset release -R "^$name\$" --no-tests=error
done
