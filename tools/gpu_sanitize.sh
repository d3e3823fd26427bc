#!/usr/bin/env bash
# On a machine with an H200, after `cmake --build --preset cuda`: runs every kernel of the recurrent
# layers (EveryKernel, the conv, the commits) under compute-sanitizer's memcheck, racecheck and
# initcheck, all at once, and writes h200_sanitizer.json. Fails on a report, a failed test, a crash
# or a process that takes longer than SECONDS_EACH. BUILD, RESULTS: as tools/gpu_test.sh.
#   SECONDS_EACH  of a process (170)
set -uo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/cuda}
results=${RESULTS:-bench/results}
declare -A shards=([memcheck]=4 [racecheck]=10 [initcheck]=4)  # racecheck takes the longest
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
mkdir -p "$results"

port=49152  # each tool's process has ports of its own
# tool, name of the report, binary, filter. The poison that fills shared memory is not looked at: it
# would take most of the time.
sanitize() {
  timeout "${SECONDS_EACH:-170}" compute-sanitizer --tool "$1" --error-exitcode 9 \
    --kernel-name-exclude kns=poison_kernel --launch-timeout 100 --port $port \
    "$build/tests/$3" --gtest_brief=1 --gtest_filter="$4" \
    --gtest_output="json:$reports/$1.$2.json" > "$reports/$1.$2.log" 2>&1
  echo $? > "$reports/$1.$2.code"
}
for tool in "${!shards[@]}"; do
  for ((shard = 0; shard < shards[$tool]; ++shard)); do
    GTEST_TOTAL_SHARDS=${shards[$tool]} GTEST_SHARD_INDEX=$shard \
      sanitize $tool $shard replay_cuda_test '*EveryKernel*' &
    ((port += 16))
  done
  sanitize $tool device device_cuda_test 'CommitCuda.*:ConvCuda.*' &
  ((port += 16))
done
wait
tools/gpu_test_report.py --build "$build" --sanitizers --out "$results/h200_sanitizer.json" \
  "$reports"
