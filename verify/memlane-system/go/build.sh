#!/bin/sh
# Builds programs in Go from their modules, at the versions that go.mod and go.sum name.
#
# usage: build.sh FOLDER libc|static [grpc|redis|caddy|etcd|prometheus]…
#
# The programs lie in FOLDER/libc (linked with libc) or FOLDER/static. The go command keeps what it has compiled: a
# program that has not changed is there at once. All of them take seven minutes of processor time the first time.
set -eu

die() {
    printf '%s\n' "build.sh: $*" >&2
    exit 1
}

[ $# -ge 2 ] || die "usage: build.sh FOLDER libc|static [PROGRAM…]"
case $1 in /*) ;; *) die "$1: a path from / on is needed" ;; esac
case $2 in
libc) CGO_ENABLED=1 ;;
static) CGO_ENABLED=0 ;;
*) die "$2: libc or static" ;;
esac
FOLDER=$1/$2
shift 2
[ $# -gt 0 ] || set -- grpc redis caddy etcd prometheus
cd "$(dirname "$0")"
mkdir -p "$FOLDER"

PATH=$PATH:/usr/local/go/bin
# An older go command fetches the release that go.mod names.
GOTOOLCHAIN=auto
GOFLAGS='-p=2 -trimpath -buildvcs=false'
GO111MODULE=on
export PATH CGO_ENABLED GOTOOLCHAIN GOFLAGS GO111MODULE

# build MODULE PROGRAM PACKAGE [OPTION…]
build() {
    module=$1 program=$2 package=$3
    shift 3
    go -C "$module" build "$@" -o "$FOLDER/$program" "$package" || die "$program could not be built"
}

for name; do
    case $name in
    grpc | redis) build peers "$name" "./$name" ;;
    caddy) build caddy caddy github.com/caddyserver/caddy/v2/cmd/caddy ;;
    etcd)
        build etcd etcd go.etcd.io/etcd/server/v3
        build etcd etcdctl go.etcd.io/etcd/etcdctl/v3
        ;;
    prometheus)
        # Without what finds targets in clouds, which is most of it.
        build prometheus prometheus github.com/prometheus/prometheus/cmd/prometheus -tags remove_all_sd
        build prometheus target ./target
        ;;
    *) die "$name: unknown" ;;
    esac
done
