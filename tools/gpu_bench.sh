#!/usr/bin/env bash
# On a machine with an H200, after `cmake --build --preset cuda`: times the kernels, and the peers
# if tools/fetch_peers.sh brought them; then holds the results to the targets. Flags go to both:
# --headline (minutes), --seconds N (each a part; the next call resumes), --filter REGEX.
#   BUILD    the build folder (build/cuda)
#   RESULTS  where the JSON goes (bench/results)
set -uo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/cuda}
results=${RESULTS:-bench/results}
mkdir -p "$results"
# Results in the repository are resumed, wherever the new ones go.
cp -n bench/results/h200_*.json "$results"/ 2> /dev/null
status=0
if [ -e .peers/carry.tar.xz ]; then
  # What is not compiled yet is, beside our own cells.
  [ -e .peers/versions ] || tar -xJf .peers/carry.tar.xz -C .peers
  case " $* " in *" --headline "*) part=headline ;; *) part=all ;; esac
  JOBS=$(($(nproc) > 2 ? $(nproc) - 2 : 1)) nice tools/build_peers.sh $part &
fi
"$build/bench_kernels" --out "$results" "$@" || status=1
if [ -e .peers/versions ]; then
  wait
  python3 bench/kernels/peers.py --out "$results" "$@" || status=1
else
  echo "no peers: tools/fetch_peers.sh brings them"
fi
tools/check_targets.py --results "$results" || status=1
exit $status
