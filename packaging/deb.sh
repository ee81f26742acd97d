#!/bin/sh
# Makes Debian packages of a built memlane and prints their paths, one a line.
#   packaging/deb.sh [--built target/release] [--c target/library] [--kubernetes target/release] [--out target/deb]
#
# memlane has what packaging/install.sh installs, which is the only list of that. With --c there are two more packages:
# libmemlane0 and libmemlane-dev, the library for C programs; with --kubernetes one more, memlane-kubernetes: the webhook, the
# CSI plugin and the chart. Nothing but dpkg-deb and binutils is needed.
#
# dpkg owns /usr/lib/memlane/libmemlane_preload.so. Programs preload a link to it, which postinst makes in a folder of
# the version. dpkg removes its own files when it unpacks the next version; without the link, the children of running
# programs would have an LD_PRELOAD that names no file.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
built='' out='' c='' kubernetes='' version='' compress=''
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || { echo "deb.sh: $1 needs a value" >&2; exit 2; }
    case $1 in
    --built) built=$2 ;;
    --out) out=$2 ;;
    --c) c=$2 ;;
    --kubernetes) kubernetes=$2 ;;
    # For tests of upgrades.
    --version) version=$2 ;;
    --compress) compress="-Z$2" ;;
    *) echo "deb.sh: --built, --out, --c or --kubernetes, not $1" >&2; exit 2 ;;
    esac
    shift 2
done
target=${CARGO_TARGET_DIR:-$here/target}
built=${built:-$target/release} out=${out:-$target/deb}
library=libmemlane_preload.so
maintainer='memlane developers <memlane@users.noreply.github.com>'
arch=$(dpkg --print-architecture)
made=$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(stat -c %Y "$here/CHANGELOG.md")}")

umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ---- what every package has -------------------------------------------------

# documents ROOT PACKAGE: Debian's copyright and changelog.
documents() {
    doc=$1/usr/share/doc/$2
    mkdir -p "$doc"
    gzip -9n >"$doc/changelog.gz" <<TEXT
memlane ($version) unstable; urgency=medium

  * See CHANGELOG.md.gz in the package memlane.

 -- $maintainer  $made
TEXT
    cat >"$doc/copyright" <<'TEXT'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: memlane
Source: https://github.com/memlane/memlane

Files: *
Copyright: the memlane authors
License: Apache-2.0 or Expat

License: Apache-2.0
 On Debian systems, the text of this licence is in /usr/share/common-licenses/Apache-2.0.

License: Expat
TEXT
    sed -e '1,/^Copyright\|^$/d' -e 's/^$/./' -e 's/^/ /' "$here/LICENSE-MIT" >>"$doc/copyright"
}

# needs FILE…: the C library and the compiler's library that these files need.
needs() {
    libc=$(objdump -T "$@" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
    printf 'libc6 (>= %s)' "$libc"
    if objdump -p "$@" | grep -q 'NEEDED.*libgcc_s'; then printf ', libgcc-s1 (>= 4.2)'; fi
}

# control ROOT PACKAGE SECTION DEPENDS [FIELD]: the description comes from standard input.
control() {
    mkdir -p "$1/DEBIAN"
    {
        echo "Package: $2"
        [ "$2" = memlane ] || echo "Source: memlane"
        cat <<TEXT
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk "$1/usr" | cut -f 1)
Depends: $4
Section: $3
Priority: optional
Homepage: https://github.com/memlane/memlane
TEXT
        [ -z "${5:-}" ] || echo "$5"
        cat
    } >"$1/DEBIAN/control"
}

# pack ROOT PACKAGE: makes the package and prints its path.
pack() {
    (cd "$1" && find usr -type f -exec md5sum {} +) >"$1/DEBIAN/md5sums"
    file=$out/$2_${version}_$arch.deb
    # shellcheck disable=SC2086 # a flag or nothing
    dpkg-deb --build --root-owner-group $compress "$1" "$file" >&2
    printf '%s\n' "$file"
}

# ---- memlane ----------------------------------------------------------------

command_package() {
    root=$work/memlane
    sh "$here/packaging/install.sh" install --prefix /usr --destdir "$root" --built "$built" \
        ${kubernetes:+--kubernetes "$kubernetes"}
    [ -z "$kubernetes" ] || take_apart
    mv "$root/usr/lib/memlane/$real/$library" "$root/usr/lib/memlane/$library"
    rm -r "$root/usr/lib/memlane/$real"
    strip --strip-unneeded "$root/usr/bin/memlane" "$root/usr/lib/memlane/$library"
    rm "$root/usr/share/doc/memlane/LICENSE-MIT" "$root/usr/share/doc/memlane/LICENSE-APACHE"
    gzip -9n "$root/usr/share/doc/memlane/CHANGELOG.md"
    find "$root/usr/share/man" -type f -name '*.[1-9]' -exec gzip -9n {} + 2>/dev/null || true
    documents "$root" memlane
    mkdir -p "$root/usr/share/lintian/overrides"
    cat >"$root/usr/share/lintian/overrides/memlane" <<'TEXT'
# A volume is mapped when remote file systems are: its file system may be one of them.
memlane: systemd-service-file-refers-to-unusual-wantedby-target *
TEXT
    control "$root" memlane net "$(needs "$root/usr/bin/memlane" "$root/usr/lib/memlane/$library")" <<'TEXT'
Description: run TCP programs of one host over shared memory
 Programs that are started by "memlane run" talk to each other through memory
 that both have mapped, wherever that can be done without either noticing, and
 by TCP wherever it cannot. The package has the command, the library that it
 preloads, and units for systemd.
TEXT
    scripts "$root"
    pack "$root" memlane
}

# What clusters need goes from the package memlane into one of its own: it is twice as large.
take_apart() {
    mkdir -p "$work/memlane-kubernetes/usr/share"
    mv "$root/usr/libexec" "$work/memlane-kubernetes/usr/libexec"
    mv "$root/usr/share/memlane" "$work/memlane-kubernetes/usr/share/memlane"
}

kubernetes_package() {
    root=$work/memlane-kubernetes
    strip --strip-unneeded "$root"/usr/libexec/memlane/*
    documents "$root" memlane-kubernetes
    control "$root" memlane-kubernetes net "memlane (= $version), $(needs "$root"/usr/libexec/memlane/*)" \
        'Recommends: e2fsprogs, mount
Suggests: lvm2, mdadm, xfsprogs' <<'TEXT'
Description: memlane in Kubernetes: admission webhook and CSI plugin
 The programs that "memlane webhook" and "memlane csi" become, for lanes
 between the pods of a node and for volumes that live on storage nodes, and the
 chart that runs them in a cluster. A storage node can run the plugin outside a
 cluster, too.
TEXT
    pack "$root" memlane-kubernetes
}

# scripts ROOT: postinst and postrm.
scripts() {
    cat >"$1/DEBIAN/postinst" <<TEXT
#!/bin/sh
set -e
if [ "\$1" = configure ]; then
    dir="\$DPKG_ROOT/usr/lib/memlane"
    mkdir -p "\$dir/$version"
    # The link appears in one step: a program may be starting.
    ln -f "\$dir/$library" "\$dir/$version/.new"
    mv -f "\$dir/$version/.new" "\$dir/$version/$library"
    keep=$version
$(sweep)
fi
TEXT
    cat >"$1/DEBIAN/postrm" <<TEXT
#!/bin/sh
set -e
case \$1 in
remove | purge)
    dir="\$DPKG_ROOT/usr/lib/memlane"
    keep=none
$(sweep)
    rmdir "\$dir" 2>/dev/null || true
    ;;
esac
TEXT
    chmod 755 "$1/DEBIAN/postinst" "$1/DEBIAN/postrm"
}

# Shell code for both scripts: removes the libraries of other versions that no process has loaded.
sweep() {
    cat <<TEXT
    for old in "\$dir"/*/$library; do
        [ -e "\$old" ] || continue
        case \$old in "\$dir/\$keep/"*) continue ;; esac
        if ! grep -qsF -- "\${old#"\$DPKG_ROOT"}" /proc/[0-9]*/maps; then
            rm -f "\$old"
            rmdir "\${old%/*}" 2>/dev/null || true
        fi
    done
TEXT
}

# ---- libmemlane0 and libmemlane-dev -----------------------------------------

library_packages() {
    libdir=/usr/lib/$(multiarch)
    dev=$work/libmemlane-dev root=$work/libmemlane0
    sh "$here/bindings/c/install.sh" --prefix /usr --libdir "$libdir" --destdir "$dev" --built "$c"
    strip --strip-debug "$dev$libdir/libmemlane.a"
    documents "$dev" libmemlane-dev
    mkdir -p "$root$libdir"
    mv "$dev$libdir"/libmemlane.so.* "$root$libdir/"
    real_library=$(echo "$root$libdir"/libmemlane.so.*.*)
    strip --strip-unneeded "$real_library"
    chmod 644 "$real_library"
    documents "$root" libmemlane0

    control "$root" libmemlane0 libs "$(needs "$real_library")" 'Multi-Arch: same' <<'TEXT'
Description: streams whose payload lands in a region of memory
 The shared library of memlane for C programs. What a stream receives lands in
 a region of memory that may be a device's, and is handed over without a copy.
TEXT
    printf 'libmemlane 0 libmemlane0 (>= %s)\n' "$version" >"$root/DEBIAN/shlibs"
    printf 'activate-noawait ldconfig\n' >"$root/DEBIAN/triggers"
    pack "$root" libmemlane0

    control "$dev" libmemlane-dev libdevel "libmemlane0 (= $version)" 'Multi-Arch: same' <<'TEXT'
Description: streams whose payload lands in a region of memory (development)
 The header, the static library and the pkg-config file of memlane for C
 programs. What a stream receives lands in a region of memory that may be a
 device's, and is handed over without a copy.
TEXT
    pack "$dev" libmemlane-dev
}

# The name that Debian gives the libraries' folder of this architecture.
multiarch() { dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || "${CC:-cc}" -print-multiarch; }

real=$("$built/memlane" --version | sed -n 's/^memlane //p')
[ -n "$real" ] || { echo "deb.sh: no memlane in $built that says its version" >&2; exit 1; }
version=${version:-$real}
mkdir -p "$out"
command_package
[ -z "$kubernetes" ] || kubernetes_package
[ -z "$c" ] || library_packages
