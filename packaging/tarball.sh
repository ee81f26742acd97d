#!/bin/sh
# Makes an archive of a built memlane for Linux systems without its package, and prints its path.
#   packaging/tarball.sh [--built target/release] [--c target/library] [--kubernetes target/release] [--out target/tarball]
#
# It has what packaging/install.sh installs, and runs from wherever it is unpacked. The units of systemd name
# /usr/local/bin/memlane: tar -C /usr/local --strip-components=1 -xzf memlane-VERSION-ARCH-linux.tar.gz
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
built=$target/release out=$target/tarball c='' kubernetes=''
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || { echo "tarball.sh: $1 needs a value" >&2; exit 2; }
    case $1 in
    --built) built=$2 ;;
    --out) out=$2 ;;
    --c) c=$2 ;;
    --kubernetes) kubernetes=$2 ;;
    *) echo "tarball.sh: --built, --out, --c or --kubernetes, not $1" >&2; exit 2 ;;
    esac
    shift 2
done

umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sh "$here/packaging/install.sh" install --prefix /usr/local --destdir "$work/root" --built "$built" ${c:+--c "$c"} \
    ${kubernetes:+--kubernetes "$kubernetes"}
version=$("$built/memlane" --version | sed -n 's/^memlane //p')
name=memlane-$version-$(uname -m)-linux
mv "$work/root/usr/local" "$work/$name"
strip --strip-unneeded "$work/$name/bin/memlane" "$work/$name/lib/memlane/$version/libmemlane_preload.so"
[ -z "$kubernetes" ] || strip --strip-unneeded "$work/$name"/libexec/memlane/*

mkdir -p "$out"
# The same files make the same archive.
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@${SOURCE_DATE_EPOCH:-$(stat -c %Y "$here/CHANGELOG.md")}" -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
printf '%s\n' "$out/$name.tar.gz"
