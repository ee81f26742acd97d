#!/bin/sh
# Makes the Python wheel and its source archive, checks both with twine, and prints their paths.
#   packaging/wheel.sh [--out target/wheels] [--tools target/tools/python] [--python python3]
#
# maturin and twine are installed into a virtual environment of their own, at exactly these versions. Exit status 3: they
# cannot be installed here.
set -eu

MATURIN=1.16.0
TWINE=7.0.0

here=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
out=$target/wheels tools=$target/tools/python python=python3
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || { echo "wheel.sh: $1 needs a value" >&2; exit 2; }
    case $1 in
    --out) out=$2 ;;
    --tools) tools=$2 ;;
    --python) python=$2 ;;
    *) echo "wheel.sh: --out, --tools or --python, not $1" >&2; exit 2 ;;
    esac
    shift 2
done

# What some user has installed is not looked at.
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset RUSTFLAGS

installed() {
    [ "$("$tools/bin/maturin" --version 2>/dev/null)" = "maturin $MATURIN" ] &&
        "$tools/bin/twine" --version 2>/dev/null | grep -q "^twine version $TWINE "
}
installed || {
    "$python" -m venv --clear "$tools" >&2 &&
        "$tools/bin/python" -m pip install -q "maturin==$MATURIN" "twine==$TWINE" >&2
} || {
    echo "wheel.sh: maturin $MATURIN and twine $TWINE cannot be installed (python3-venv, an index of packages)" >&2
    exit 3
}

rm -rf "$out"
mkdir -p "$out"
cd "$here/bindings/python"
# Two steps: the archive has fewer crates than the workspace, so its lock file is not the one that --locked asks for.
"$tools/bin/maturin" sdist --out "$out" >&2
CARGO_TARGET_DIR=$target "$tools/bin/maturin" build --locked --quiet --interpreter "$python" --out "$out" >&2
"$tools/bin/twine" check --strict "$out"/* >&2
printf '%s\n' "$out"/*
