#!/bin/sh
# Builds Kubernetes and what a node of it runs, from Go modules, at the versions that go.mod and go.sum name.
#
# usage: build.sh FOLDER [control-plane|node|sidecars|sanity|helm]…
#
#   control-plane  etcd, kube-apiserver, kubectl
#   node           containerd, its shim and ctr, kubelet, kube-proxy, kube-controller-manager, kube-scheduler
#   sidecars       Kubernetes's own controllers of volumes: csi-provisioner, csi-attacher, csi-resizer, csi-snapshotter
#   sanity         csi-sanity, the test of CSI plugins
#   helm           helm
#
# The programs lie in FOLDER. The go command keeps what it has compiled: a program that has not changed is there at once.
# All of them take half an hour of processor time the first time.
set -eu

die() {
    printf '%s\n' "build.sh: $*" >&2
    exit 1
}

[ $# -ge 1 ] || die "usage: build.sh FOLDER [PART…]"
case $1 in /*) FOLDER=$1 ;; *) die "$1: a path from / on is needed" ;; esac
shift
[ $# -gt 0 ] || set -- control-plane node sidecars sanity helm
cd "$(dirname "$0")"
mkdir -p "$FOLDER"

PATH=$PATH:/usr/local/go/bin
# An older go command fetches the release that go.mod names.
GOTOOLCHAIN=auto
GOFLAGS='-p=2 -trimpath -buildvcs=false'
GO111MODULE=on
CGO_ENABLED=0
export PATH CGO_ENABLED GOTOOLCHAIN GOFLAGS GO111MODULE

# build MODULE PACKAGE [FLAGS OF THE LINKER]
build() {
    program=${2##*/}
    go -C "$1" build -ldflags "-s -w ${3-}" -o "$FOLDER/$program.new" "$2" || die "$program could not be built"
    mv "$FOLDER/$program.new" "$FOLDER/$program"
}

# Kubernetes takes its version from the linker. Its programs refuse to work with an empty one.
kubernetes() {
    version=$(go -C kubernetes list -m -f '{{.Version}}' k8s.io/kubernetes)
    minor=${version#v*.}
    named=k8s.io/component-base/version
    build kubernetes "k8s.io/kubernetes/cmd/$1" "-X $named.gitVersion=$version -X $named.gitMajor=1 \
        -X $named.gitMinor=${minor%%.*} -X k8s.io/client-go/pkg/version.gitVersion=$version"
}

etcd() {
    go -C ../go/etcd build -ldflags '-s -w' -o "$FOLDER/etcd" go.etcd.io/etcd/server/v3 || die "etcd could not be built"
}

for part; do
    case $part in
    control-plane)
        etcd
        kubernetes kube-apiserver
        kubernetes kubectl
        ;;
    node)
        kubernetes kubelet
        kubernetes kube-controller-manager
        kubernetes kube-scheduler
        kubernetes kube-proxy
        for program in containerd containerd-shim-runc-v2 ctr; do
            build containerd "github.com/containerd/containerd/v2/cmd/$program"
        done
        ;;
    sidecars)
        build sidecars github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner
        build sidecars github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher
        build sidecars github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer
        build sidecars github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter
        ;;
    sanity) build sidecars github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity ;;
    helm) build helm helm.sh/helm/v4/cmd/helm ;;
    *) die "$part: unknown" ;;
    esac
done
