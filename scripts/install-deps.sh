#!/usr/bin/env bash
# Installs the Debian packages that are missing: scripts/install-deps.sh [build] [test] [demo] [fuzz] [lint]
# [chaos] [bench] [bindings] [torch] [roots] [slurm] [browser] [ssh] [emulated] (without arguments: build test
# demo; chaos gives processes wall clocks of their own, bench is what libhvd is measured against, bindings and
# torch what the bindings' tests need, slurm what the test of srun needs: where systemd runs, it starts
# munged for good; ssh what tests of agents on other hosts need: where systemd runs, it starts sshd for good;
# emulated what aarch64 needs on another processor). Needs root or sudo only if something is missing.
set -euo pipefail

declare -A packages=(
  [build]="build-essential cmake ninja-build pkg-config libssl-dev libfmt-dev libflatbuffers-dev
           flatbuffers-compiler libasio-dev libxxhash-dev libcli11-dev libboost-dev libgloo-dev libopenmpi-dev libpmix-dev python3-dev file"
  [test]="libgtest-dev openmpi-bin mpich libmpich-dev libbenchmark-dev python3 python3-prometheus-client iproute2 binutils abigail-tools"
  [demo]="openmpi-bin libeigen3-dev zlib1g-dev dataset-fashion-mnist"
  [fuzz]="clang-14 libclang-rt-14-dev"
  [lint]="clang-format clang-tidy git"
  [chaos]="libfaketime"
  [bench]="libopenmpi-dev openmpi-bin"
  [bindings]="python3-numpy python3-pytest python3-venv mypy"
  [torch]="python3-torch"
  [roots]="debootstrap"
  [ssh]="openssh-server openssh-client"
  [emulated]="g++-aarch64-linux-gnu qemu-user-static"
  [browser]="chromium"
  [slurm]="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
)

[ $# -gt 0 ] || set -- build test demo
wanted=()
for set_name in "$@"; do
  [ -n "${packages[$set_name]:-}" ] || { echo "unknown set '$set_name': one of ${!packages[*]}" >&2; exit 2; }
  read -r -d '' -a names <<<"${packages[$set_name]}" || true
  wanted+=("${names[@]}")
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "not a Debian system: see to it that the likes of these are installed: ${wanted[*]}" >&2
  exit 0
fi
missing=()
for name in "${wanted[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "missing packages, and neither root nor sudo: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }
apt update
apt install -y --no-install-recommends "${missing[@]}" >/dev/null
