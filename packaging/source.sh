# shellcheck shell=sh
# Sources of Debian's packages, for ./dev and verify/memlane-system/musl/build.sh. They are no part of memlane.

# source_lists FOLDER: fetches lists of source packages. They are separate, so the machine's own stay as they are.
source_lists() {
    mkdir -p "$1/sources" "$1/lists/partial" "$1/cache/archives/partial"
    for list in /etc/apt/sources.list.d/*.sources; do
        [ ! -e "$list" ] || sed 's/^Types:.*/Types: deb-src/' "$list" >"$1/sources/${list##*/}"
    done
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -e "$list" ] || sed -n 's/^deb /deb-src /p' "$list" >"$1/sources/${list##*/}"
    done
    SOURCE_LISTS="-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=$1/sources"
    SOURCE_LISTS="$SOURCE_LISTS -o Dir::State::Lists=$1/lists -o Dir::Cache=$1/cache"
    SOURCE_LISTS="$SOURCE_LISTS -o Acquire::Retries=2 -o APT::Sandbox::User= -o Dpkg::Use-Pty=0"
    # shellcheck disable=SC2086 # options
    timeout 180 apt-get $SOURCE_LISTS -qq update || true
}

# fetch_source PACKAGE[=VERSION] FOLDER: unpacks what the package's authors have published. After source_lists.
fetch_source() {
    rm -rf "$2" "$2.fetched"
    mkdir -p "$2" "$2.fetched"
    # shellcheck disable=SC2086 # options
    (
        cd "$2.fetched" &&
            # What Debian has added may be missing: it is not needed.
            { timeout 180 apt-get $SOURCE_LISTS -qq --download-only source "$1" || true; } &&
            rm -f ./*.asc &&
            tar -xf ./*.orig.tar.* --strip-components=1 -C "$2"
    ) || return 1
    rm -rf "$2.fetched"
}
