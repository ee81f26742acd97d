#!/bin/sh
# Builds mainline's RTRS and RNBD, which Debian's kernels leave out, as peers of our volumes over RDMA (`--test rdma_guest`).
#
# usage: build.sh FOLDER [6.1]
#
# The result is in FOLDER/RELEASE: rtrs-core.ko, rtrs-client.ko, rtrs-server.ko, rnbd-client.ko and rnbd-server.ko, for the newest
# 6.12 or 6.1 kernel that apt knows. It fetches 170 MB and takes about a minute.
set -eu
peer=rnbd
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=bench/peers/modules.sh
. "$here/../modules.sh"
case "$#${2-}" in
1) ;;
26.1) older ;;
*) die "usage: build.sh FOLDER [6.1]" ;;
esac
begin "$1" rnbd-server.ko
unpack drivers/infiniband/ulp/rtrs drivers/block/rnbd

# Both in one make, so that rnbd knows what rtrs exports.
mkdir both
mv "$SOURCE/drivers/infiniband/ulp/rtrs" "$SOURCE/drivers/block/rnbd" both
echo 'obj-y += rtrs/ rnbd/' >both/Kbuild
# rnbd looks for rtrs.h in the kernel's own tree.
# shellcheck disable=SC2016 # make's variables
sed -i 's#-I$(srctree)/drivers/infiniband/ulp/rtrs#-I$(src)/../rtrs#' both/rnbd/Makefile
grep -q 'src)/../rtrs' both/rnbd/Makefile || die "the Makefile of rnbd is not as it was"
modules both CONFIG_INFINIBAND_RTRS=m CONFIG_INFINIBAND_RTRS_CLIENT=m CONFIG_INFINIBAND_RTRS_SERVER=m \
    CONFIG_BLK_DEV_RNBD_CLIENT=m CONFIG_BLK_DEV_RNBD_SERVER=m
keep both/rtrs/*.ko both/rnbd/*.ko
finish
