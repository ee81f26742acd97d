#!/bin/sh
# Makes a Debian package of a built memlane: packaging/deb.sh [--built target/release] [--out target/deb] [--c target/library]
# dpkg-deb alone: what the package holds is what packaging/install.sh installs, and there is one list of that.
#
# dpkg owns /usr/lib/memlane/libmemlane_preload.so. The file that is preloaded is a link to it in a folder of its
# version, made by postinst: dpkg takes its own files away when it unpacks the next version, and programs that run
# would then have children whose LD_PRELOAD names nothing.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
built='' out='' c='' version='' compress=''
while [ $# -gt 1 ]; do
    case $1 in
    --built) built=$2 ;;
    --out) out=$2 ;;
    --c) c=$2 ;;
    # For tests of upgrades.
    --version) version=$2 ;;
    --compress) compress="-Z$2" ;;
    *) echo "deb.sh: --built, --out or --c, not $1" >&2; exit 2 ;;
    esac
    shift 2
done
target=${CARGO_TARGET_DIR:-$here/target}
built=${built:-$target/release} out=${out:-$target/deb}
library=libmemlane_preload.so
maintainer='memlane developers <memlane@users.noreply.github.com>'

umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/DEBIAN"
sh "$here/packaging/install.sh" install --prefix /usr --destdir "$root" --built "$built" ${c:+--c "$c"}
real=$("$built/memlane" --version | sed -n 's/^memlane //p')
version=${version:-$real}
mv "$root/usr/lib/memlane/$real/$library" "$root/usr/lib/memlane/$library"
rm -r "$root/usr/lib/memlane/$real"

# As Debian wants them: stripped, packed, one changelog, one copyright.
strip --strip-unneeded "$root/usr/bin/memlane" "$root/usr/lib/memlane/$library"
doc=$root/usr/share/doc/memlane
rm "$doc/LICENSE-MIT" "$doc/LICENSE-APACHE"
gzip -9n "$doc/CHANGELOG.md"
made=$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(stat -c %Y "$here/CHANGELOG.md")}")
gzip -9n >"$doc/changelog.gz" <<TEXT
memlane ($version) unstable; urgency=medium

  * See CHANGELOG.md.gz.

 -- $maintainer  $made
TEXT
cat >"$doc/copyright" <<'TEXT'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: memlane
Source: https://github.com/memlane/memlane

Files: *
Copyright: the memlane authors
License: Apache-2.0 or Expat

License: Apache-2.0
 On Debian systems, the text of this licence is in /usr/share/common-licenses/Apache-2.0.

License: Expat
TEXT
sed -e '1,/^Copyright\|^$/d' -e 's/^$/./' -e 's/^/ /' "$here/LICENSE-MIT" >>"$doc/copyright"
find "$root/usr/share/man" -type f -name '*.[1-9]' -exec gzip -9n {} + 2>/dev/null || true

arch=$(dpkg --print-architecture)
# The newest symbol that program and library ask of libc.
libc=$(objdump -T "$root/usr/bin/memlane" "$root/usr/lib/memlane/$library" |
    sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
gcc=$(objdump -p "$root/usr/bin/memlane" | grep -q 'NEEDED.*libgcc_s' && echo ', libgcc-s1 (>= 4.2)' || true)
size=$(du -sk "$root/usr" | cut -f 1)
cat >"$root/DEBIAN/control" <<TEXT
Package: memlane
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $size
Depends: libc6 (>= $libc)$gcc
Section: net
Priority: optional
Homepage: https://github.com/memlane/memlane
Description: run TCP programs of one host over shared memory
 Programs that are started by "memlane run" talk to each other through memory
 that both have mapped, wherever that can be done without either noticing, and
 by TCP wherever it cannot. The package has the command, the library that it
 preloads, and units for systemd.
TEXT
(cd "$root" && find usr -type f -exec md5sum {} +) >"$root/DEBIAN/md5sums"

cat >"$root/DEBIAN/postinst" <<TEXT
#!/bin/sh
set -e
if [ "\$1" = configure ]; then
    dir="\$DPKG_ROOT/usr/lib/memlane"
    mkdir -p "\$dir/$version"
    # By its name or not at all: somebody may be starting a program.
    ln -f "\$dir/$library" "\$dir/$version/.new"
    mv -f "\$dir/$version/.new" "\$dir/$version/$library"
TEXT
sweep=$work/sweep
cat >"$sweep" <<TEXT
    # Libraries of other versions that no process has loaded any more.
    for old in "\$dir"/*/$library; do
        [ -e "\$old" ] || continue
        case \$old in "\$dir/\$keep/"*) continue ;; esac
        if ! grep -qsF -- "\${old#"\$DPKG_ROOT"}" /proc/[0-9]*/maps; then
            rm -f "\$old"
            rmdir "\${old%/*}" 2>/dev/null || true
        fi
    done
TEXT
{
    echo "    keep=$version"
    cat "$sweep"
    printf 'fi\n'
} >>"$root/DEBIAN/postinst"
cat >"$root/DEBIAN/postrm" <<TEXT
#!/bin/sh
set -e
case \$1 in
remove | purge)
    dir="\$DPKG_ROOT/usr/lib/memlane"
    keep=none
TEXT
{
    cat "$sweep"
    # shellcheck disable=SC2016 # for the script
    printf '    rmdir "$dir" 2>/dev/null || true\n    ;;\nesac\n'
} >>"$root/DEBIAN/postrm"
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"

mkdir -p "$out"
file=$out/memlane_${version}_$arch.deb
# shellcheck disable=SC2086 # a flag or nothing
dpkg-deb --build --root-owner-group $compress "$root" "$file" >&2
printf '%s\n' "$file"
