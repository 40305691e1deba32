# Bare Debian systems to try things in, for scripts/roots.sh and scripts/readmes.sh, which source this file.
# Roots are made by debootstrap once, from deb.debian.org, and kept in build/roots. Needs root. Status 77: no
# root can be made.
roots=$PWD/build/roots
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "SKIPPED: needs root and debootstrap"; exit 77; }

# make_root NAME SUITE PACKAGES: what "minimal" means to Debian, and these packages, separated by commas.
make_root() {
  local made="$2 $3"
  [ "$(cat "$roots/$1/.ready" 2>/dev/null)" != "$made" ] || return 0
  rm -rf "${roots:?}/$1"
  mkdir -p "$roots"
  debootstrap --variant=minbase --include="$3" "$2" "$roots/$1" http://deb.debian.org/debian >"$roots/$1.log" 2>&1 ||
    { tail -5 "$roots/$1.log"; echo "SKIPPED: debootstrap $2 failed"; exit 77; }
  echo "$made" >"$roots/$1/.ready"
}

# in_root NAME DIRECTORY...: runs the script on stdin in the root, which keeps nothing of what it does. The
# directories are at the same paths as here, read-only; with "+" before it, one can be written to. What is
# mounted ends with the script.
in_root() {
  local inside root=$roots/$1 changes status=0
  shift
  inside=$(cat)
  changes=$(mktemp -d "$roots/changes.XXXXXX")
  mkdir "$changes/upper" "$changes/work" "$changes/root"
  unshare --mount --pid --fork --propagation private bash -euc '
    lower=$1 changes=$2 inside=$3 root=$2/root
    shift 3
    mount -t overlay overlay -o "lowerdir=$lower,upperdir=$changes/upper,workdir=$changes/work" "$root"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/tmp"
    mount -t tmpfs tmpfs "$root/dev"
    mkdir "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/dev/shm"
    for name in null zero full urandom random; do touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"; done
    for place; do
      from=${place#+}
      mkdir -p "$root$from"
      mount --bind "$from" "$root$from"
      [ "$place" != "$from" ] || mount -o remount,bind,ro "$root$from"
    done
    exec chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive HVD_TEST_PATIENCE="${HVD_TEST_PATIENCE:-1}" bash -euc "$inside"
  ' bash "$root" "$changes" "$inside" "$@" || status=$?
  rm -rf "$changes"
  return $status
}
