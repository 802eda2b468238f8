#!/usr/bin/env bash
# The tests of ops and draws on the GPU under compute-sanitizer: memory errors, then races. Usage: tests/compute_sanitizer.sh
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in memcheck racecheck; do
  compute-sanitizer --tool "$tool" --error-exitcode 1 python -m pytest -p no:cacheprovider --timeout 3000 -k "cuda and not engine_draws and not more_rows" tests/kernels/test_ops.py tests/kernels/test_row_ops.py tests/kernels/test_wide_activations.py tests/kernels/test_attention.py tests/kernels/test_tensor_cores.py tests/kernels/test_device_draw.py
done
