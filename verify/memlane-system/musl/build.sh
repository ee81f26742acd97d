#!/bin/sh
# Builds stock programs with musl, dynamically linked, from the sources of Debian's packages.
#
# usage: build.sh FOLDER [nginx|redis|memcached|curl]…
#
# The programs lie in FOLDER. One that is there already is not built again. All of them take a few minutes.
set -eu
cd "$(dirname "$0")/../../.."
# shellcheck source=packaging/source.sh
. packaging/source.sh

die() {
    printf '%s\n' "build.sh: $*" >&2
    exit 1
}

[ $# -ge 1 ] || die "usage: build.sh FOLDER [PROGRAM…]"
case $1 in /*) ;; *) die "$1: a path from / on is needed" ;; esac
FOLDER=$1
WORK=$FOLDER/work
shift
[ $# -gt 0 ] || set -- nginx redis memcached curl
JOBS=$(nproc)

# musl has no headers of the kernel, and Debian's has no crypt.h. nginx includes it, and uses it for passwords only.
headers() {
    mkdir -p "$WORK/headers"
    ln -sfn /usr/include/linux "$WORK/headers/linux"
    ln -sfn /usr/include/asm-generic "$WORK/headers/asm-generic"
    ln -sfn "/usr/include/$(uname -m)-linux-gnu/asm" "$WORK/headers/asm"
    : >"$WORK/headers/crypt.h"
    CC="musl-gcc -idirafter $WORK/headers"
}

# begin PACKAGE: fetches and enters its sources.
begin() {
    fetch_source "$1" "$WORK/$1" || die "no sources of $1 from apt"
    cd "$WORK/$1"
}

# keep PROGRAM…: puts what has been built in its place, whole or not at all.
keep() {
    for built in "$@"; do
        strip -o "$WORK/new" "$built"
        mv "$WORK/new" "$FOLDER/${built##*/}"
    done
    cd "$WORK"
}

nginx() {
    begin nginx
    ./configure --with-cc="$CC" --prefix=/nonexistent --without-pcre --without-http_rewrite_module \
        --without-http_gzip_module --without-http_auth_basic_module
    make -j "$JOBS"
    keep objs/nginx
}

redis() {
    begin redis
    make -j "$JOBS" -C src CC="$CC" MALLOC=libc OPTIMIZATION=-O1 USE_SYSTEMD=no redis-server redis-cli redis-benchmark
    # redis-server is the last one: it says that all are there.
    keep src/redis-cli src/redis-benchmark src/redis-server
}

memcached() {
    begin libevent
    ./configure CC="$CC" --disable-openssl --disable-shared --disable-samples --disable-libevent-regress
    make include/event2/event-config.h
    make -j "$JOBS" libevent.la
    begin memcached
    ./configure CC="$CC" CPPFLAGS="-I$WORK/libevent/include" LDFLAGS="-L$WORK/libevent/.libs" --disable-docs
    make -j "$JOBS" memcached
    keep memcached
}

curl() {
    begin curl
    ./configure CC="$CC" --disable-shared --without-ssl --without-zlib --without-libpsl --disable-ldap --disable-manual
    make -j "$JOBS"
    keep src/curl
}

# The program that is there once everything of a package is.
last_of() {
    case $1 in
    redis) printf redis-server ;;
    *) printf '%s' "$1" ;;
    esac
}

prepared=
for name in "$@"; do
    case $name in nginx | redis | memcached | curl) ;; *) die "$name is not known here" ;; esac
    [ ! -e "$FOLDER/$(last_of "$name")" ] || continue
    if [ -z "$prepared" ]; then
        rm -rf "$WORK"
        headers
        source_lists "$WORK/apt"
        prepared=yes
    fi
    "$name"
done
rm -rf "$WORK"
