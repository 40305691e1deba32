#!/usr/bin/env bash
# Makes the directory that wheels are compiled against: scripts/sysroot.sh amd64|arm64 DIRECTORY
# It holds Debian 11's C library (glibc 2.31), so that what is built runs on every system as new as that, and
# of Debian 12 the headers and static libraries that libhvd is built with; OpenSSL among them, with its
# security fixes. Packages are unpacked, not installed: it takes apt and dpkg-deb, not root.
# cmake/sysroot.cmake compiles against it. Status 77: a package could not be fetched.
set -euo pipefail
[ $# = 2 ] && [[ $1 =~ ^(amd64|arm64)$ ]] || { echo "usage: scripts/sysroot.sh amd64|arm64 DIRECTORY" >&2; exit 2; }
arch=$1 root=$2
here=$(cd "$(dirname "$0")" && pwd)
case $arch in
  amd64) triplet=x86_64-linux-gnu ;;
  arm64) triplet=aarch64-linux-gnu ;;
esac
# Nothing of these gets into what is built: each system has its own, with its fixes.
old=(libc6 libc6-dev linux-libc-dev libgcc-s1 libstdc++6)
new=(libssl-dev libfmt-dev libfmt9 libflatbuffers-dev libflatbuffers2 libasio-dev libxxhash-dev libcli11-dev libboost1.74-dev
     libpython3.11-dev libgtest-dev)
version=$(sha256sum "$0" | cut -c1-16)
[ ! -e "$root/.ready" ] || [ "$(cat "$root/.ready")" != "$version" ] || exit 0
command -v "$triplet-g++" >/dev/null || { echo "needs $triplet-g++: Debian's package g++-${triplet/_/-}" >&2; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Fetches packages of a release, with security fixes or without, past what this machine's apt knows.
fetch() { # suite security|plain package...
  local suite=$1 fixes=$2 own=$work/$1
  shift 2
  mkdir -p "$own/state/lists/partial" "$own/cache/archives/partial" "$work/debs"
  touch "$own/status"
  for line in "debian $suite" "debian-security $suite-security"; do
    read -r archive name <<<"$line"
    [ "$fixes" = security ] || [ "$archive" = debian ] || continue
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/$archive $name main"
  done >"$own/sources.list"
  local apt=(apt-get -qq -o Dir::State="$own/state" -o Dir::State::status="$own/status" -o Dir::Cache="$own/cache"
    -o Dir::Etc::SourceList="$own/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Acquire::Languages=none
    -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root)
  "${apt[@]}" update && (cd "$work/debs" && "${apt[@]}" download "$@") ||
    { echo "packages of Debian's $suite could not be fetched" >&2; exit 77; }
}
fetch bullseye plain "${old[@]}"
fetch bookworm security "${new[@]}"
rm -rf "$root"
mkdir -p "$root"
root=$(cd "$root" && pwd)
for deb in "$work"/debs/*.deb; do dpkg-deb --extract "$deb" "$root"; done

# The C library's links are absolute; those of the linker's scripts are found below the sysroot.
find "$root" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln -sfn "$root$(readlink "$link")" "$link"
done
ln -sf "$root/usr/lib/$triplet/libstdc++.so.6" "$root/usr/lib/$triplet/libstdc++.so"
# OpenSSL is linked in, and hidden: no program that brings its own is mixed with it.
rm -f "$root/usr/lib/$triplet"/lib{ssl,crypto}.so
"$triplet-gcc" -c -O2 -fPIC --sysroot="$root" "$here/../cmake/sysroot.c" -o "$work/sysroot.o"
"$triplet-ar" crs "$root/usr/lib/$triplet/libhvd_sysroot.a" "$work/sysroot.o"
echo "$version" >"$root/.ready"
