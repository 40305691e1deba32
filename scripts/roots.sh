#!/usr/bin/env bash
# Installs a wheel on bare Debian systems, without a compiler, and runs an elastic job there that loses a
# worker: scripts/roots.sh WHEEL [SUITE...] (bullseye bookworm trixie). With the system's Python where the
# wheel takes it, and with each of HVD_TEST_PYTHONS (directories of installed Pythons, as pyenv makes them)
# that runs there. Debian 11's own Python is too old: Python 3.11 is built for it, once, of Debian 12's
# sources, in a root of its own. Needs root, debootstrap and deb.debian.org; status 77: no root can be made.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] && [ -f "$1" ] || { echo "usage: scripts/roots.sh WHEEL [SUITE...] (scripts/wheels.sh makes one)" >&2; exit 2; }
wheel=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- bullseye bookworm trixie
. scripts/root.sh

# A Python newer than the suite's, from the sources of a later one: make_python SUITE LATER VERSION, to
# build/roots/python.
make_python() {
  local prefix=$roots/python/$1-$3
  [ ! -e "$prefix/.ready" ] || return 0
  make_root "$1-build" "$1" build-essential,zlib1g-dev,libffi-dev
  mkdir -p "$prefix"
  in_root "$1-build" "+$prefix" /usr/share/keyrings <<E2
suite=$2 version=$3 prefix=$prefix
$(cat <<'E3'
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >/etc/apt/sources.list.d/later.list
apt-get -qq update
cd /tmp
apt-get -qq source --download-only python$version
mkdir source
tar -xf python$version*.orig.tar.* -C source --strip-components=1
cd source
./configure --quiet --prefix="$prefix" --without-doc-strings --disable-test-modules CFLAGS="-O1" >/dev/null
make -s -j"$(nproc)" >/tmp/log 2>&1 && make -s install >>/tmp/log 2>&1 || { tail -20 /tmp/log; exit 1; }
E3
)
E2
  touch "$prefix/.ready"
}

name=$(basename "$wheel")
for suite; do
  pythons=(${HVD_TEST_PYTHONS:-})
  if [ "$suite" = bullseye ]; then
    make_root bullseye bullseye python3
    make_python bullseye bookworm 3.11
    pythons+=("$roots"/python/bullseye-*)
  else
    make_root "$suite" "$suite" python3,python3-venv
    pythons=(/usr "${pythons[@]}")
  fi
  mounts=("$(dirname "$wheel")")
  for python in "${pythons[@]}"; do [ "$python" = /usr ] || mounts+=("$python"); done
  in_root "$suite" "${mounts[@]}" <<E2
wheel=$wheel pythons="${pythons[*]}"
$(cat <<'E3'
. /etc/os-release
for tool in cc gcc g++ cmake; do ! command -v $tool || { echo "$tool is here: the root is not bare"; exit 1; }; done
cat >/tmp/job.py <<'end'
import array, os, signal
import hvd

hvd.init()
state = hvd.elastic.ObjectState(step=0, total=0.0)

@hvd.elastic.run
def train(state):
    while state.step < 200:
        one = array.array("d", [1.0])
        hvd.allreduce_(one, "one", op=hvd.Sum)
        state.total += one[0] / hvd.size()
        state.step += 1
        state.commit()
        if state.step == 100 and hvd.rank() == 2 and hvd.generation() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

train(state)
print("done", hvd.size(), state.step, state.total, len(hvd.recoveries()), flush=True)
hvd.shutdown()
end
tried=0
for python in $pythons; do
  python=$python/bin/python3
  if ! $python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/tmp/log; then
    # One that was built for a newer C library, or whose libraries are not here.
    echo "$PRETTY_NAME: left out $python: $(tail -1 /tmp/log)"
    continue
  fi
  began=$(date +%s)
  rm -rf /tmp/env
  $python -m venv /tmp/env
  /tmp/env/bin/pip install --quiet --no-index --disable-pip-version-check "$wheel"
  /tmp/env/bin/hvdrun -np 3 --min-np 2 -H localhost:3 --set restart=false -- /tmp/env/bin/python /tmp/job.py >/tmp/log 2>&1 ||
    { cat /tmp/log; exit 1; }
  [ "$(grep -c 'done 2 200 200.0 1' /tmp/log)" = 2 ] || { cat /tmp/log; echo "expected two survivors at step 200"; exit 1; }
  took=$(($(date +%s) - began))
  echo "$PRETTY_NAME, $($python --version): installed, and a job that lost a worker done, after $took s"
  tried=$((tried + 1))
done
[ $tried -gt 0 ] || { echo "$PRETTY_NAME: no Python of $pythons runs here"; exit 1; }
/tmp/env/bin/hvdrun --check-build
E3
)
E2
done
