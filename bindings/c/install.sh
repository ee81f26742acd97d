#!/bin/sh
# Puts libmemlane, memlane.h and memlane.pc where C programs look for them.
#   cargo build --profile library -p memlane-c
#   bindings/c/install.sh [--prefix /usr/local] [--libdir PREFIX/lib] [--destdir FOLDER] [--built target/library]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local libdir='' destdir='' built=''
while [ $# -gt 0 ]; do
    option=$1
    [ $# -ge 2 ] || { echo "$option: what? (--prefix, --libdir, --destdir, --built)" >&2; exit 2; }
    case $option in
        --prefix) prefix=$2 ;;
        --libdir) libdir=$2 ;;
        --destdir) destdir=$2 ;;
        --built) built=$2 ;;
        *) echo "$option: --prefix, --libdir, --destdir or --built" >&2; exit 2 ;;
    esac
    shift 2
done
libdir=${libdir:-$prefix/lib}
built=${built:-${CARGO_TARGET_DIR:-$here/../../target}/library}
for file in libmemlane_c.so libmemlane_c.a; do
    [ -e "$built/$file" ] || {
        echo "there is no $built/$file: cargo build --profile library -p memlane-c" >&2
        exit 1
    }
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml" | head -n 1)

mkdir -p "$destdir$libdir/pkgconfig" "$destdir$prefix/include"
install -m 644 "$here/include/memlane.h" "$destdir$prefix/include/memlane.h"
install -m 755 "$built/libmemlane_c.so" "$destdir$libdir/libmemlane.so.$version"
ln -sf "libmemlane.so.$version" "$destdir$libdir/libmemlane.so.0"
ln -sf libmemlane.so.0 "$destdir$libdir/libmemlane.so"
install -m 644 "$built/libmemlane_c.a" "$destdir$libdir/libmemlane.a"
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@INCLUDEDIR@|$prefix/include|" \
    -e "s|@VERSION@|$version|" "$here/memlane.pc.in" > "$destdir$libdir/pkgconfig/memlane.pc"
