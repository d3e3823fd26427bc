#!/usr/bin/env bash
# symbols.sh NM LIBRARY.so LIBRARY.a: the shared library exports the C interface and nothing else; the
# static one defines no name outside it but within the namespace replayssm (or shared weak ones).
set -euo pipefail
nm=$1 shared=$2 static=$3
exported=$("$nm" -D --defined-only "$shared" | awk '{print $3}')
declared=$(grep -oE '\brssm_[a-z_]+\(' "$(dirname "$0")/../../include/replayssm/replayssm.h" | tr -d '(' | sort -u)
if others=$(grep -vE '^rssm_' <<< "$exported"); then
  echo "$shared exports: $others"
  exit 1
fi
if missing=$(comm -13 <(sort -u <<< "$exported") <(echo "$declared") | grep .); then
  echo "$shared does not export: $missing"
  exit 1
fi
if others=$("$nm" --defined-only --extern-only "$static" | awk '$2 ~ /^[A-Z]$/ && $2 !~ /[WVu]/ {print $3}' |
    grep -vE '^(rssm_|_ZN?K?[A-Z]*9replayssm|_Z(TV|TI|TS|TH|TW|GV)N?K?9replayssm)'); then
  echo "$static defines: $others"
  exit 1
fi
echo "$(wc -l <<< "$exported") names exported"
