#!/bin/sh
# Builds the kernel's SMC with its loopback device, for the column `smc` of `memlane-bench run counted`: a module
# (Debian's kernel has SMC, but not that device), and a library that gives programs SMC sockets.
#
# usage: build.sh FOLDER
#
# The result is in FOLDER/RELEASE: smc.ko and smc-sockets.so, for the newest 6.12 kernel that apt knows. It fetches 170 MB and
# takes about a minute.
set -eu
peer=smc
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=bench/peers/modules.sh
. "$here/../modules.sh"
[ $# = 1 ] || die "usage: build.sh FOLDER"
begin "$1" smc.ko
unpack net/smc

[ -e "$SOURCE/net/smc/smc_loopback.c" ] || die "$SOURCE $version has no SMC loopback device"
# The C code asks whether CONFIG_SMC_LO is on, which the headers' configuration denies.
# shellcheck disable=SC2016 # make's variable
sed -i 's#^ccflags-y += -I$(src)#& -DCONFIG_SMC_LO=1#' "$SOURCE/net/smc/Makefile"
grep -q CONFIG_SMC_LO=1 "$SOURCE/net/smc/Makefile" || die "the Makefile of net/smc is not as it was"
modules "$SOURCE/net/smc" CONFIG_SMC=m CONFIG_SMC_DIAG=n CONFIG_SMC_LO=y
keep "$SOURCE/net/smc/smc.ko"
gcc-12 -O2 -shared -fPIC -Wall -Wextra -Werror -o "$work/result/smc-sockets.so" "$here/sockets.c"
finish
