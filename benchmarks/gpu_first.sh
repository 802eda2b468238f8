#!/usr/bin/env bash
# The first program to run on a GPU that is there for minutes only. A JSON line a result, in the order of what was never seen; within 7 minutes.
#
#   benchmarks/gpu_first.sh [RESULT.json]
#
# Native probes run while the package builds (nothing is downloaded: pip takes what is installed). Then the tests of engines, and gpu.py.
set -uo pipefail
cd "$(dirname "$0")/.."
result=${1:-gpu.json}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
# One part: its name, its limit in seconds, its command. The command's own JSON lines pass through, the rest goes to a log that a failure shows.
part() {
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  timeout "$limit" "$@" > "$scratch/$name.log" 2>&1 || status=$?
  grep '^{' "$scratch/$name.log"
  if [ "$status" != 0 ]; then
    tail -40 "$scratch/$name.log" >&2
    failed=1
  fi
  printf '{"part": "%s", "status": %d, "seconds": %d, "at": %d, "last": "%s"}\n' "$name" "$status" $((SECONDS - begin)) "$SECONDS" \
    "$(grep -v '^{' "$scratch/$name.log" | tail -1 | tr -d '"\\' | cut -c1-200)"
}
build() {
  python3 -m pip install -q --no-build-isolation --no-deps --config-settings=cmake.define.LLMI_CUDA=ON \
    --config-settings=cmake.define.LLMI_TESTING=ON .
}
probe() {
  nvcc -std=c++20 -O3 -arch=native benchmarks/native/gpu_probes.cu -o "$scratch/gpu_probes" && "$scratch/gpu_probes"
}
export -f build probe
export scratch

part build 240 bash -c build & building=$!
part probes 60 bash -c probe
wait "$building"
python3 -c 'import llmi' || exit 1
part engines 120 python3 -m pytest -q -p no:cacheprovider -x -k "cuda and not emulated" tests/kernels/test_cuda.py tests/kernels/test_ops.py
part gpu 240 python3 -u benchmarks/gpu.py --no-checks --rounds 1 --output "$result"
exit "$failed"
