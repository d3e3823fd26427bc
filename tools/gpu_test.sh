#!/usr/bin/env bash
# On a machine with an H200, after `cmake --build --preset cuda`: runs every test binary of the GPU
# and writes h200_tests.json. Fails on a failed test, a crash, a skip that is not listed in
# tests/cuda/expected_skips.txt, or a build of other sources. Flags go to the binaries
# (--gtest_filter); a run with flags is no record and writes nothing.
#   BUILD         the build folder (build/cuda)
#   RESULTS       where the JSON goes (bench/results)
#   SHARDS        processes a binary (3)
#   SECONDS_EACH  of a process (400)
set -uo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/cuda}
results=${RESULTS:-bench/results}
shards=${SHARDS:-3}
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
record=()
if (($# == 0)); then
  mkdir -p "$results"
  record=(--out "$results/h200_tests.json")
fi
shopt -s nullglob
# All at once: most of their time is the CPU's, which computes what to expect.
for binary in "$build"/tests/*_cuda_test; do
  for ((shard = 0; shard < shards; ++shard)); do
    {
      name=$(basename "$binary").$shard
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout "${SECONDS_EACH:-400}" \
        "$binary" --gtest_brief=1 --gtest_output="json:$reports/$name.json" "$@" \
        > "$reports/$name.log" 2>&1
      echo $? > "$reports/$name.code"
      echo "== $name"
      cat "$reports/$name.log"
    } &
  done
done
wait
tools/gpu_test_report.py --build "$build" "${record[@]}" "$reports"
