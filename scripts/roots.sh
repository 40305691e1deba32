#!/usr/bin/env bash
# Installs the wheel on a bare Debian 12, without a compiler, and runs an elastic job there that loses a worker:
# scripts/roots.sh WHEEL. With Debian's Python, and with each of HVD_TEST_PYTHONS (directories of installed Pythons, as
# pyenv makes them). The root is made by debootstrap once, from deb.debian.org, and kept in build/roots. Needs root and
# debootstrap; what is mounted is mounted in a namespace that ends with the script. Status 77: no root can be made.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] && [ -f "$1" ] || { echo "usage: scripts/roots.sh WHEEL (scripts/wheels.sh makes one)" >&2; exit 2; }
wheel=$(realpath "$1")
roots=$PWD/build/roots
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "SKIPPED: needs root and debootstrap"; exit 77; }

make_root() { # suite
  [ ! -e "$roots/$1/.ready" ] || return 0
  rm -rf "${roots:?}/$1"
  mkdir -p "$roots"
  debootstrap --variant=minbase --include=python3,python3-venv "$1" "$roots/$1" http://deb.debian.org/debian \
    >"$roots/$1.log" 2>&1 || { tail -5 "$roots/$1.log"; echo "SKIPPED: debootstrap $1 failed"; exit 77; }
  touch "$roots/$1/.ready"
}

# Runs the script on stdin in the root, with the wheel in /wheel, read-only.
in_root() { # suite
  local inside
  inside=$(cat)
  mkdir -p "$roots/$1/wheel"
  unshare --mount --pid --fork --propagation private bash -euc '
    root=$1 wheel=$2
    mount --bind "$wheel" "$root/wheel" && mount -o remount,bind,ro "$root/wheel"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/tmp"
    mount -t tmpfs tmpfs "$root/dev"
    mkdir "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/dev/shm"
    for name in null zero urandom random; do touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"; done
    for python in $4; do
      mkdir -p "$root$python"; mount --bind "$python" "$root$python"; mount -o remount,bind,ro "$root$python"
    done
    exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp LC_ALL=C.UTF-8 PYTHONS="$4" \
      HVD_TEST_PATIENCE="${HVD_TEST_PATIENCE:-1}" bash -euc "$3"
  ' bash "$roots/$1" "$(dirname "$wheel")" "$inside" "${HVD_TEST_PYTHONS:-}"
}

name=$(basename "$wheel")
make_root bookworm
in_root bookworm <<E2
name=$name
$(cat <<'E3'
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
for python in /usr/bin/python3 $(for p in $PYTHONS; do echo $p/bin/python3; done); do
  began=$(date +%s)
  rm -rf /tmp/env
  $python -m venv /tmp/env
  /tmp/env/bin/pip install --quiet --no-index --disable-pip-version-check /wheel/$name
  /tmp/env/bin/hvdrun -np 3 --min-np 2 -H localhost:3 --set restart=false -- /tmp/env/bin/python /tmp/job.py >/tmp/log 2>&1 ||
    { cat /tmp/log; exit 1; }
  [ "$(grep -c 'done 2 200 200.0 1' /tmp/log)" = 2 ] || { cat /tmp/log; echo "expected two survivors at step 200"; exit 1; }
  /tmp/env/bin/hvdrun --check-build
  echo "$(/tmp/env/bin/python --version): installed, and a job that lost a worker done, after $(($(date +%s) - began)) s"
done
E3
)
E2
