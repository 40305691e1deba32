#!/usr/bin/env bash
# Installs frameworks of PyPI's into build/frameworks and runs the tests of their bindings against
# build/release: scripts/frameworks.sh [jax|lightgbm|lightning|ray|spark|tensorflow|torch]... (jax and
# lightgbm if none is named). scripts/test.sh alone never does: they are hundreds of megabytes.
# `scripts/frameworks.sh torch==2.5.1`, or tensorflow==2.12.0, alone: a version has an environment of its own,
# build/frameworks-torch-2.5.1. These two are the oldest that are tested.
# HVD_PYTORCH_SOURCE: a checkout of PyTorch, files of whose own tests run besides.
# `scripts/frameworks.sh burn`, alone, builds the Rust crate hvd-burn with crates of crates.io in build/burn.
# `scripts/frameworks.sh horovod`, alone, runs Horovod's own tests and examples. It fails if an example does,
# or a test in bindings/python/tests/horovod_own.json. HVD_HOROVOD_SOURCE: a checkout of Horovod (PyPI has
# none of these); else GitHub's newest is cloned. Nothing of it is built.
set -euo pipefail
cd "$(dirname "$0")/.."
frameworks=("$@")
[ $# -gt 0 ] || frameworks=(jax lightgbm)
if [ "${frameworks[*]}" = burn ]; then
  release=$PWD/build/release
  [ -x "$release/bin/hvdrun" ] || { echo "$0: build the release preset first" >&2; exit 1; }
  export HVD_LIBRARY=$release/lib HVD_PLUGIN_PATH=$release/lib/hvd/1 HVD_TEST_BIN=$release/bin
  export LD_LIBRARY_PATH=$release/lib CARGO_TARGET_DIR=$PWD/build/burn
  cd bindings/rust/burn
  exec cargo test --locked
fi
if [ "${frameworks[*]}" = horovod ]; then
  release=$PWD/build/release environment=$PWD/build/frameworks-horovod tests=$PWD/bindings/python/tests
  [ -x "$release/bin/hvdrun" ] || { echo "$0: build the release preset first" >&2; exit 1; }
  [ -x "$environment/bin/python" ] || "${HVD_PYTHON:-python3}" -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check numpy pytest torch tensorflow-cpu tf_keras \
    mock cloudpickle packaging parameterized psutil torchvision tensorboard tqdm filelock pillow
  source=${HVD_HOROVOD_SOURCE:-$environment/horovod}
  [ -d "$source/test/parallel" ] ||
    git clone --quiet --depth 1 https://github.com/horovod/horovod "$source"
  export HVD_LIBRARY=$release/lib HVD_PLUGIN_PATH=$release/lib/hvd/1 TF_USE_LEGACY_KERAS=1
  "$environment/bin/python" -B "$tests/horovod_own_examples.py" "$source" </dev/null
  while read -r file ranks; do
    "$environment/bin/python" -B "$tests/horovod_own.py" "$source" "$file" -np "$ranks" \
      --recorded "$tests/horovod_own.json" </dev/null
  done < <(python3 -c 'import json, sys
for file, by_ranks in json.load(open(sys.argv[1])).items():
    for ranks in by_ranks: print(file, ranks)' "$tests/horovod_own.json")
  exit
fi
environment=build/frameworks pinned=()
if [ $# -eq 1 ] && [[ $1 =~ ^(torch|tensorflow)==(.+)$ ]]; then
  frameworks=("${BASH_REMATCH[1]}") environment+=-${BASH_REMATCH[1]}-${BASH_REMATCH[2]}
  case ${frameworks[0]} in
    torch) pinned=("$1" 'numpy<2.3') ;;
    tensorflow) pinned=("tensorflow-cpu==${BASH_REMATCH[2]}") ;;
  esac
fi
for framework in "${frameworks[@]}"; do
  case $framework in
    jax | lightgbm | lightning | ray | spark | tensorflow | torch) ;;
    *) echo "$0: '$framework': expected jax, lightgbm, lightning, ray, spark, tensorflow, torch," \
            "or alone burn, horovod, tensorflow==VERSION or torch==VERSION" >&2; exit 2 ;;
  esac
done
[ -d build/release ] || { echo "$0: build the release preset first" >&2; exit 1; }
python=${HVD_PYTHON:-python3}
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
packages=("${frameworks[@]/#tensorflow/tensorflow-cpu}")
[[ " ${frameworks[*]} " != *' tensorflow '* ]] || packages+=(tf_keras) # for TF_USE_LEGACY_KERAS
packages=("${packages[@]/#spark/pyspark}") # which needs Java besides
[ ${#pinned[@]} -eq 0 ] || packages=("${pinned[@]}")
"$environment/bin/pip" install --quiet --disable-pip-version-check numpy pytest "${packages[@]}" ||
  { echo "$0: ${frameworks[*]} could not be installed: their tests are left out" >&2; exit 0; }
export HVD_PYTHON=$PWD/$environment/bin/python
for framework in "${frameworks[@]}"; do
  name=python_$framework
  [ "$framework" != torch ] || name='python_(binding|horovod|horovod_examples|torch_distributed)'
  [ "$framework" != tensorflow ] || name='python_(tensorflow|keras|horovod|horovod_examples)'
  ctest --preset release -R "^$name\$" --no-tests=error
  if [ "$framework" = torch ]; then  # PyTorch's own tests of process groups
    "$environment/bin/pip" install --quiet --disable-pip-version-check expecttest hypothesis
    HVD_LIBRARY=$PWD/build/release/lib/libhvd.so HVD_PLUGIN_PATH=$PWD/build/release/lib/hvd/1 \
      "$HVD_PYTHON" -B bindings/python/tests/torch_own.py
    if [ -n "${HVD_PYTORCH_SOURCE:-}" ]; then
      HVD_LIBRARY=$PWD/build/release/lib/libhvd.so HVD_PLUGIN_PATH=$PWD/build/release/lib/hvd/1 \
        "$HVD_PYTHON" -B bindings/python/tests/torch_own_files.py "$HVD_PYTORCH_SOURCE"
    fi
  fi
done
