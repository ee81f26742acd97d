# shellcheck shell=sh
# What the scripts that build modules of mainline's for Debian's kernels share. Sourced by them, not run.
#
# Nothing is installed: packages are unpacked below the result's folder, and removed at the end.

PACKAGE=linux-image-6.12-amd64 # a name for the newest one
SOURCE=linux-source-6.12

# older: the stock kernel of Debian 12 instead.
older() {
    PACKAGE=linux-image-amd64
    SOURCE=linux-source-6.1
}

die() {
    printf '%s\n' "$peer: $*" >&2
    exit 1
}

# begin FOLDER FILE: sets `out`, the result's folder, and goes to a working folder. Exits if the FILE is there already.
begin() {
    for tool in apt-get dpkg-deb make gcc-12 xz strip; do
        command -v "$tool" >/dev/null || die "$tool is missing"
    done
    image=$(apt-cache depends "$PACKAGE" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    release=${image#linux-image-} # 6.12.117+deb12-amd64
    [ -n "$release" ] || die "apt knows no $PACKAGE"
    mkdir -p "$1"
    out=$(cd "$1" && pwd)/$release
    [ ! -e "$out/$2" ] || exit 0
    work=$(mktemp -d "$out.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM
    root=$work/root
    cd "$work"
}

# unpack PATH...: these folders of the kernel's source, below $SOURCE; headers that fit; `version`.
unpack() {
    # Image, headers and source move together: a kernel refuses modules of another version.
    headers=linux-headers-$release
    needed=$(apt-cache depends "$headers" | sed -n 's/^ *Depends: \(linux-headers-.*\|linux-kbuild-.*\)/\1/p')
    for package in "$headers" $needed "$SOURCE"; do
        apt-get -qq -o APT::Sandbox::User= download "$package" || die "apt has no $package"
    done
    for archive in ./*.deb; do
        dpkg-deb -x "$archive" "$root"
        rm "$archive"
    done
    version=$(sed -n 's/^# Linux.* \([0-9.]*\) Kernel Configuration/\1/p' "$root/usr/src/linux-headers-$release/.config")
    # The headers' Makefile names the place where they would be installed.
    headers=$root/usr/src/linux-headers-$release
    sed -i "s#^include .*/linux-headers-#include $root/usr/src/linux-headers-#" "$headers/Makefile"
    for folder; do
        set -- "$@" "$SOURCE/$folder"
        shift
    done
    tar -xJf "$root/usr/src/$SOURCE.tar.xz" "$@"
    mkdir result
}

# modules FOLDER SETTING...: makes them. Their own debug information would need pahole, and nobody reads it.
modules() {
    folder=$1
    shift
    make -C "$headers" M="$work/$folder" CONFIG_DEBUG_INFO_BTF_MODULES= "$@" modules >"$work/log" 2>&1 ||
        { tail -n 30 "$work/log" >&2; die "make failed"; }
}

# keep FILE...: modules, without debug information, into the result.
keep() {
    for file; do
        strip -g -o "$work/result/$(basename "$file")" "$file"
    done
}

# finish: the result takes its place.
finish() {
    rm -rf "$out"
    mv "$work/result" "$out"
}
