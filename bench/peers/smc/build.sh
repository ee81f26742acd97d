#!/bin/sh
# Builds the kernel's SMC with its loopback device, for the column `smc` of `memlane-bench run counted`: a module
# (Debian's kernel has SMC, but not that device), and a library that gives programs SMC sockets.
#
# usage: build.sh FOLDER
#
# The result is in FOLDER/RELEASE: smc.ko and smc-sockets.so, for the newest 6.12 kernel that apt knows. Nothing is
# installed: packages are unpacked below FOLDER, and removed at the end. It fetches 170 MB and takes about a minute.
set -eu

PACKAGE=linux-image-6.12-amd64 # a name for the newest one
SOURCE=linux-source-6.12

die() {
    printf '%s\n' "smc: $*" >&2
    exit 1
}

[ $# = 1 ] || die "usage: build.sh FOLDER"
here=$(cd "$(dirname "$0")" && pwd)
for tool in apt-get dpkg-deb make gcc-12 xz strip; do
    command -v "$tool" >/dev/null || die "$tool is missing"
done
image=$(apt-cache depends "$PACKAGE" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
release=${image#linux-image-} # 6.12.117+deb12-amd64
[ -n "$release" ] || die "apt knows no $PACKAGE"
common=${release%-*} # 6.12.117+deb12
mkdir -p "$1"
out=$(cd "$1" && pwd)/$release
[ ! -e "$out/smc.ko" ] || exit 0

work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
root=$work/root
cd "$work"

# Image, headers and source move together: a kernel refuses modules of another version.
for package in "linux-headers-$release" "linux-headers-$common-common" "linux-kbuild-$common" "$SOURCE"; do
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

tar -xJf "$root/usr/src/$SOURCE.tar.xz" "$SOURCE/net/smc"
[ -e "$SOURCE/net/smc/smc_loopback.c" ] || die "$SOURCE $version has no SMC loopback device"
# The C code asks whether CONFIG_SMC_LO is on, which the headers' configuration denies.
# shellcheck disable=SC2016 # make's variable
sed -i 's#^ccflags-y += -I$(src)#& -DCONFIG_SMC_LO=1#' "$SOURCE/net/smc/Makefile"
grep -q CONFIG_SMC_LO=1 "$SOURCE/net/smc/Makefile" || die "the Makefile of net/smc is not as it was"
# The module's own debug information would need pahole, and nobody reads it.
make -C "$headers" M="$work/$SOURCE/net/smc" \
    CONFIG_SMC=m CONFIG_SMC_DIAG=n CONFIG_SMC_LO=y CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; die "make failed"; }

mkdir -p "$work/result"
strip -g -o "$work/result/smc.ko" "$SOURCE/net/smc/smc.ko"
gcc-12 -O2 -shared -fPIC -Wall -Wextra -Werror -o "$work/result/smc-sockets.so" "$here/sockets.c"
rm -rf "$out"
mv "$work/result" "$out"
