#!/bin/sh
# Writes the plain manifest packaging/kubernetes/memlane.yaml from the chart, or checks that it is what the chart says.
#
#   packaging/kubernetes/render.sh           writes it
#   packaging/kubernetes/render.sh --check   ends with 1, and shows the difference, if it is something else
#
# HELM names the program; else it is target/cluster/helm, which verify/memlane-system/cluster/build.sh makes, or that of PATH.
set -eu
cd "$(dirname "$0")/../.."

built=${CARGO_TARGET_DIR:-target}/cluster/helm
if [ -z "${HELM:-}" ]; then
    if [ -x "$built" ]; then HELM=$built; else HELM=helm; fi
fi
manifest=packaging/kubernetes/memlane.yaml
rendered=$(mktemp)
trap 'rm -f "$rendered"' EXIT
{
    echo '# memlane in a cluster: kubectl apply --server-side -f memlane.yaml'
    echo '# Made from the chart beside it, with its default values, by packaging/kubernetes/render.sh. Change that.'
    "$HELM" template memlane packaging/kubernetes/chart --namespace memlane --set namespace.create=true
} >"$rendered"

case ${1:-} in
--check) diff -u "$manifest" "$rendered" ;;
'') cp "$rendered" "$manifest" ;;
*)
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
