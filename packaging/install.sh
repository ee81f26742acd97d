#!/bin/sh
# Puts a built memlane where programs look for it, and takes it away again.
#   packaging/install.sh install   [--prefix /usr/local] [--destdir FOLDER] [--built target/release] [--c target/library]
#                                  [--kubernetes target/release]
#   packaging/install.sh uninstall [--prefix /usr/local] [--destdir FOLDER] [--version VERSION]
#   packaging/install.sh sweep     [--prefix /usr/local]   libraries of other versions that nobody uses any more
#
# --c and --kubernetes name folders with the library for C programs, and with the programs memlane-webhook and memlane-csi.
#
# The library has a folder of its own for each version: a program that runs keeps the one that it has loaded, and what
# it starts finds that one, too, by LD_PRELOAD. So a library goes only when no process has it loaded.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
library=libmemlane_preload.so

usage() { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }

[ $# -gt 0 ] || usage
verb=$1
shift
prefix=/usr/local destdir='' built='' c='' kubernetes='' version=''
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
    --prefix) prefix=$2 ;;
    --destdir) destdir=$2 ;;
    --built) built=$2 ;;
    --c) c=$2 ;;
    --kubernetes) kubernetes=$2 ;;
    --version) version=$2 ;;
    *) usage ;;
    esac
    shift 2
done
case $prefix in
/*) ;;
*) echo "--prefix wants an absolute path, not $prefix" >&2; exit 2 ;;
esac
built=${built:-${CARGO_TARGET_DIR:-$here/target}/release}
manifest_of() { printf '%s' "$destdir$prefix/lib/memlane/$1/installed"; }

# Is the library at $1 loaded by a process? Those of others can only be seen by root.
in_use() { grep -qsF -- "$1" /proc/[0-9]*/maps; }

# put MODE FROM TO: installs a file, by its name or not at all, and remembers it.
put() {
    mkdir -p "$destdir${3%/*}"
    install -m "$1" "$2" "$destdir$3.new"
    mv -f "$destdir$3.new" "$destdir$3"
    printf '%s\n' "${3#"$prefix"/}" >>"$list"
}

install_all() {
    for file in memlane "$library"; do
        [ -e "$built/$file" ] || {
            echo "there is no $built/$file: cargo build --release -p memlane -p memlane-preload" >&2
            exit 1
        }
    done
    version=$("$built/memlane" --version | sed -n 's/^memlane //p')
    [ -n "$version" ] || { echo "$built/memlane does not say its version" >&2; exit 1; }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    list=$work/installed
    : >"$list"
    put 755 "$built/memlane" "$prefix/bin/memlane"
    put 644 "$built/$library" "$prefix/lib/memlane/$version/$library"
    pages
    for unit in "$here"/packaging/systemd/*; do
        sed "s|/usr/bin/memlane|$prefix/bin/memlane|" "$unit" >"$work/unit"
        put 644 "$work/unit" "$prefix/lib/systemd/system/${unit##*/}"
    done
    for file in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE; do
        put 644 "$here/$file" "$prefix/share/doc/memlane/$file"
    done
    (cd "$here/docs" && find . -name '*.md') | sort >"$work/docs"
    while read -r file; do
        put 644 "$here/docs/$file" "$prefix/share/doc/memlane/docs/${file#./}"
    done <"$work/docs"
    [ -z "$c" ] || c_library
    [ -z "$kubernetes" ] || for_kubernetes
    put 644 "$list" "$prefix/lib/memlane/$version/installed"
    [ -n "$destdir" ] || sweep
}

# Manual pages and completions, if this memlane can write them.
pages() {
    "$built/memlane" __pages "$work/share" >/dev/null 2>&1 || {
        echo "no manual pages: this memlane writes none" >&2
        return 0
    }
    (cd "$work/share" && find . -type f) | sort >"$work/pages"
    while read -r file; do
        put 644 "$work/share/$file" "$prefix/share/${file#./}"
    done <"$work/pages"
}

c_library() {
    sh "$here/bindings/c/install.sh" --prefix "$prefix" --destdir "$work/c" --built "$c"
    (cd "$work/c$prefix" && find . -type f) | sort >"$work/cfiles"
    while read -r file; do
        put 644 "$work/c$prefix/$file" "$prefix/${file#./}"
    done <"$work/cfiles"
    (cd "$work/c$prefix" && find . -type l) | sort >"$work/clinks"
    while read -r file; do
        cp -P "$work/c$prefix/$file" "$destdir$prefix/${file#./}"
        printf '%s\n' "${file#./}" >>"$list"
    done <"$work/clinks"
}

# Programs that memlane webhook and memlane csi become, and the chart that runs them.
for_kubernetes() {
    for program in memlane-webhook memlane-csi; do
        said=$("$kubernetes/$program" --version) || {
            echo "there is no $kubernetes/$program: cargo build --release -p $program" >&2
            exit 1
        }
        [ "$said" = "$program $version" ] || {
            echo "$kubernetes/$program says that it is $said, and memlane is $version" >&2
            exit 1
        }
        put 755 "$kubernetes/$program" "$prefix/libexec/memlane/$program"
    done
    (cd "$here/packaging/kubernetes" && find chart memlane.yaml grafana.json -type f) | sort >"$work/manifests"
    while read -r file; do
        put 644 "$here/packaging/kubernetes/$file" "$prefix/share/memlane/kubernetes/$file"
    done <"$work/manifests"
}

uninstall() {
    if [ -z "$version" ]; then
        version=$("$destdir$prefix/bin/memlane" --version 2>/dev/null | sed -n 's/^memlane //p') || true
    fi
    manifest=$(manifest_of "${version:-none}")
    [ -e "$manifest" ] || {
        echo "nothing of memlane is installed in $destdir$prefix that $manifest would tell of" >&2
        exit 1
    }
    while read -r file; do
        case $file in
        "lib/memlane/$version/"* | /* | *..*) ;;
        # Another version may have put its own there since.
        *) if only_in "$file"; then rm -f "$destdir$prefix/$file"; fi ;;
        esac
    done <"$manifest"
    rm -f "$manifest"
    sweep
    for dir in share/doc/memlane share/memlane lib/memlane libexec/memlane; do
        find "$destdir$prefix/$dir" -depth -type d -empty -delete 2>/dev/null || true
    done
}

# Does no other version's list have this file, or is it its own that is being taken away?
only_in() {
    for other in "$destdir$prefix"/lib/memlane/*/installed; do
        if [ "$other" != "$manifest" ] && [ -n "$(find "$other" -newer "$manifest")" ] && grep -qxF -- "$1" "$other"; then
            return 1
        fi
    done
}

# Versions without a list are those that were taken away; the newest list is that of the version in bin.
sweep() {
    current=$("$destdir$prefix/bin/memlane" --version 2>/dev/null | sed -n 's/^memlane //p') || true
    for dir in "$destdir$prefix"/lib/memlane/*/; do
        dir=${dir%/}
        [ -e "$dir/$library" ] || continue
        [ "${dir##*/}" = "$current" ] && [ -e "$dir/installed" ] && continue
        [ "$verb" = uninstall ] && [ -e "$dir/installed" ] && continue
        if in_use "$dir/$library"; then
            echo "$dir/$library stays: programs that run have loaded it (packaging/install.sh sweep, later)" >&2
        else
            rm -f "$dir/$library" "$dir/installed"
            rmdir "$dir" 2>/dev/null || true
        fi
    done
}

case $verb in
install) install_all ;;
uninstall) uninstall ;;
sweep) sweep ;;
*) usage ;;
esac
