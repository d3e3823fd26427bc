#!/bin/sh
# Fetches the Debian packages that corpus.tsv names and unpacks each into DIR/root/<package>.
# Needs a Debian 12 system (apt-get download, dpkg). Nothing is installed.
# Usage: fetch_corpus.sh DIR
set -eu
dir=${1:?usage: fetch_corpus.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir/debs" "$dir/root"
dir=$(cd "$dir" && pwd)
names=$(grep -v '^#' "$here/corpus.tsv" | cut -f1)
cd "$dir/debs"
# shellcheck disable=SC2086
apt-get download $names
: > "$dir/versions.tsv"
for deb in *.deb; do
    name=$(dpkg-deb -f "$deb" Package)
    echo "$names" | grep -qx "$name" || continue
    printf '%s\t%s\n' "$name" "$(dpkg-deb -f "$deb" Version)" >> "$dir/versions.tsv"
    [ -d "$dir/root/$name" ] && continue
    mkdir -p "$dir/root/$name"
    dpkg -x "$deb" "$dir/root/$name"
done
