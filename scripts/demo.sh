#!/usr/bin/env bash
# Trains on Fashion-MNIST with three workers, kills one of them, adds a slot for a fourth, and shows how
# the job comes through: scripts/demo.sh [--quick] [--backend NAME] [--python]
# --python runs the same training in NumPy through the Python binding.
# Ends with 0 if the job succeeded, reached its accuracy, and came through both.
set -euo pipefail
cd "$(dirname "$0")/.."

epochs=20 target=0.84 backend=auto python=
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) epochs=8 target=0.80 ;;
    --backend) backend=${2:?--backend needs a name}; shift ;;
    --python) python=/usr/bin/python3 ;;
    *) echo "usage: $0 [--quick] [--backend NAME] [--python]" >&2; exit 2 ;;
  esac
  shift
done

scripts/install-deps.sh build test demo ${python:+bindings}
cmake --preset demo >/dev/null
# Alone it needs one backend; those that are named come with all that a job may load.
targets=(hvdrun hvd_tcp fashion_mnist)
[ "$backend$python" = auto ] || targets=(runtime fashion_mnist)
cmake --build --preset demo --target "${targets[@]}"
bin=$PWD/build/demo/bin
worker=("$bin/fashion_mnist")
if [ -n "$python" ]; then
  worker=("$python" "$PWD/examples/python/fashion_mnist.py")
  export PYTHONPATH=$PWD/bindings/python HVD_LIBRARY=$PWD/build/demo/lib
fi

work=$(mktemp -d)
job=
finish() {
  if [ -n "$job" ] && kill -0 "$job" 2>/dev/null; then
    kill -TERM "$job" && wait "$job" || true
  fi
  rm -rf "$work"
}
trap finish EXIT

# The driver asks this script once a second who is there.
printf 'localhost:3\n' >"$work/hosts"
printf '#!/bin/sh\nexec cat "%s/hosts"\n' "$work" >"$work/discover"
chmod +x "$work/discover"

say() { printf '\n--- %s\n\n' "$*"; }
# Workers of one host would share memory: a backend that is named carries everything itself.
local=auto
[ "$backend" = auto ] || local=off
say "3 workers, at least 2, at most 4; backend $backend"
mkfifo "$work/output"
"$bin/hvdrun" -np 3 --min-np 2 --max-np 4 --local-hosts --host-discovery-script "$work/discover" --backend "$backend" --set local=$local -- \
  "${worker[@]}" --epochs "$epochs" --target "$target" --report-every 40 >"$work/output" 2>&1 &
job=$!
exec 3<"$work/output"

# What happens next depends on what the job prints, never on the clock; silence is an error.
began=$SECONDS stage=train max_workers=0 victim= accuracy= recoveries=()
while true; do
  IFS= read -r -t 120 line <&3 || {
    [ $? -gt 128 ] || break  # the end of the output
    echo "no output for 120 s" >&2
    exit 1
  }
  printf '%s\n' "$line"
  if [[ $line =~ worker\ ([0-9]+)\ pid\ ([0-9]+)\ joins\ as\ rank\ 1\ of ]] && [ -z "$victim" ]; then
    victim=${BASH_REMATCH[2]} victim_name="worker ${BASH_REMATCH[1]}"
  elif [[ $line =~ epoch\ [0-9]+\ step\ ([0-9]+)\ .*workers\ ([0-9]+)$ ]]; then
    step=${BASH_REMATCH[1]} workers=${BASH_REMATCH[2]}
    [ "$workers" -le "$max_workers" ] || max_workers=$workers
    if [ $stage = train ] && [ "$step" -ge 120 ] && [ -n "$victim" ]; then
      say "SIGKILL to $victim_name (rank 1, pid $victim)"
      kill -KILL "$victim"
      stage=killed
    elif [ $stage = recovered ] && [ "$workers" -eq 3 ]; then
      say "the lost worker has been replaced; now a fourth slot on the host"
      printf 'localhost:4\n' >"$work/hosts.new" && mv "$work/hosts.new" "$work/hosts"
      stage=grown
    elif [ $stage = grown ] && [ "$workers" -eq 4 ]; then
      stage=complete
    fi
  elif [[ $line =~ (recovery\ [0-9]+:.*) ]]; then
    recoveries+=("${BASH_REMATCH[1]}")
    [ $stage != killed ] || stage=recovered
  elif [[ $line =~ test\ accuracy\ ([0-9.]+) ]]; then
    accuracy=${BASH_REMATCH[1]}
  fi
done
status=0
wait "$job" || status=$?
job=

say "summary"
printf '%s\n' "${recoveries[@]}"
echo "up to $max_workers workers, test accuracy ${accuracy:-none}, $((SECONDS - began)) s, exit status $status"
if [ $status -eq 0 ] && [ $stage != complete ]; then
  echo "the job ended at stage '$stage' and not 'complete'" >&2
  status=1
fi
exit $status
