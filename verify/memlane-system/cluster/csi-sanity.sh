#!/bin/sh
# Builds csi-sanity, the test suite of the Container Storage Interface, from its Go module.
#
# usage: csi-sanity.sh FOLDER
#
# The program lies in FOLDER. One that is there already is kept: the version below is part of the check.
set -eu

VERSION=v5.6.0

die() {
    printf '%s\n' "csi-sanity.sh: $*" >&2
    exit 1
}

[ $# -eq 1 ] || die "usage: csi-sanity.sh FOLDER"
case $1 in /*) ;; *) die "$1: a path from / on is needed" ;; esac
FOLDER=$1
mkdir -p "$FOLDER"

PATH=$PATH:/usr/local/go/bin
# An older go command fetches the release that go.mod names.
GOTOOLCHAIN=auto
GOFLAGS='-p=2 -trimpath'
GO111MODULE=on
CGO_ENABLED=0
export PATH GOTOOLCHAIN GOFLAGS GO111MODULE CGO_ENABLED

if [ -x "$FOLDER/csi-sanity" ] && [ "$(cat "$FOLDER/csi-sanity.version" 2>/dev/null)" = $VERSION ]; then
    exit 0
fi
GOBIN=$FOLDER go install "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@$VERSION" || die "csi-sanity could not be built"
printf '%s\n' $VERSION >"$FOLDER/csi-sanity.version"
