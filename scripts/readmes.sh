#!/usr/bin/env bash
# Does on a bare Debian 12 what the first lines of the README and of each language's page say:
# scripts/readmes.sh [BUILD_DIR [PAGE...]] (build/release, all of c rust go node). The lines are taken from
# the pages; the library is installed from the Debian packages of the build tree, in which target `runtime` is
# built. The packages that a page names are installed first. Needs root, debootstrap, and the registries of
# Debian, Go and npm; status 77: no root can be made.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
pages=("${@:2}")
[ ${#pages[@]} -gt 0 ] || pages=(c rust go node)
[ -f "$build/CPackConfig.cmake" ] || { echo "'$build' is no build directory of CMake's" >&2; exit 2; }
. scripts/root.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# block FILE LANGUAGE [TEXT]: the first block of a page in that language, or the first that holds the text.
block() {
  awk -v language="$2" -v wanted="${3:-}" '
    $0 == "```" language { inside = 1; text = ""; next }
    inside && $0 == "```" { inside = 0; if (index(text, wanted)) { printf "%s", text; found = 1; exit }; next }
    inside { text = text $0 "\n" }
    END { exit !found }' "$1" || { echo "$1 has no block of $2 with '${3:-}'" >&2; exit 1; }
}

(cd "$build" && cpack -G DEB -B "$work/packages" >"$work/log" 2>&1) || { cat "$work/log" >&2; exit 1; }
git archive --prefix=libhvd/ HEAD | tar -x -C "$work"
mkdir -p "$work/libhvd/build/package" "$work/pages"
mv "$work/packages" "$work/libhvd/build/package/packages"
block README.md c >"$work/pages/train.c"
block README.md sh "cc train.c" | sed -n '/^cc /,/localhost/p' >"$work/pages/c"
block README.md sh "apt-get install ./build" | sed -n '/^apt-get/p' >"$work/pages/install"
block docs/rust.md sh >"$work/pages/rust"
block docs/go.md sh >"$work/pages/go"
block docs/node.md js >"$work/pages/train.mjs"
block docs/node.md sh >"$work/pages/node"

# try PAGE PACKAGES EXPECTED: in a bare root with these packages, installs the library and runs the page's
# lines; what they print must have EXPECTED in it.
try() {
  local began
  began=$(date +%s)
  in_root bookworm "$work" /etc/ssl/certs <<E2
work=$work page=$1 packages="$2" expected="$3"
$(cat <<'E3'
for tool in cc gcc cmake cargo go node; do ! command -v $tool || { echo "$tool is here: the root is not bare"; exit 1; }; done
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
mkdir /home/user && cd /home/user
cp -r "$work/libhvd" .
echo "deb http://deb.debian.org/debian bookworm-backports main" >/etc/apt/sources.list.d/backports.list
{
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends $packages
  mkdir program && cp "$work/pages"/train.* program
  # As the README says, but that nobody is here to be asked.
  sed 's/^apt-get install/apt-get install -y --no-install-recommends/' "$work/pages/install" >/tmp/install
  cd libhvd && . /tmp/install && cd ../program
} >/tmp/log 2>&1 </dev/null || { tail -40 /tmp/log; exit 1; }
# The pages of Rust and Go make a directory of their own.
case $page in rust | go) cd .. ;; esac
bash -eux "$work/pages/$page" >/tmp/log 2>&1 </dev/null || { tail -40 /tmp/log; exit 1; }
grep -q -- "$expected" /tmp/log || { tail -40 /tmp/log; echo "expected '$expected'"; exit 1; }
E3
)
E2
  echo "$1: as the page says, after $(($(date +%s) - began)) s"
}

make_root bookworm bookworm python3,python3-venv
for page in "${pages[@]}"; do
  case $page in
    c) try c "gcc libc6-dev pkg-config" "rank 3 of 4: y = 2.00x + 1.00" ;;
    rust) try rust "cargo-web gcc libc6-dev pkg-config" "rank 1 of 2: y = 2.00x + 1.00" ;;
    go) try go "-t bookworm-backports golang-go gcc libc6-dev pkg-config" "rank 1 of 2: y = 2.00x + 1.00" ;;
    node) try node "nodejs npm" "rank 1 of 2: y = 2.00x + 1.00" ;;
    *) echo "no page '$page': expected c, rust, go or node" >&2; exit 2 ;;
  esac
done
