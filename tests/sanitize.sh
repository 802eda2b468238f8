#!/usr/bin/env bash
# Builds the core with AddressSanitizer and UndefinedBehaviorSanitizer and runs the tests of readers, ops and pool on it.
# Usage: tests/sanitize.sh BUILD_DIR (in an environment with the test extra)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$1
python -m pip install -q cmake ninja pybind11
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1" -DLLMI_SANITIZE=ON -DLLMI_TESTING=ON \
  -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" -DPython_EXECUTABLE="$(command -v python)" > "$build.log"
cmake --build "$build" -j "$(nproc)" >> "$build.log" || { tail -50 "$build.log"; exit 1; }
mkdir -p "$build/package"
cp -r "$root/python/llmi" "$build/package/"
cp "$build"/_core*.so "$build/package/llmi/"
export PYTHONPATH="$build/package" ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libstdc++.so)"
python -m pytest -c "$root/pyproject.toml" -p no:cacheprovider --rootdir "$root" --timeout 900 -n 2 --dist worksteal \
  "$root/tests/models/test_readers.py" "$root/tests/cache/test_cache.py" "$root/tests/sampling/test_detokenizer.py" "$root/tests/kernels/test_attention.py" "$root/tests/kernels/test_ops.py" "$root/tests/kernels/test_row_ops.py" "$root/tests/kernels/test_wide_activations.py" "$root/tests/engine/test_engine.py" \
  "$root/tests/cache/test_prefix_cache.py" "$root/tests/engine/test_scheduler.py" "$root/tests/speculation/test_speculation.py" "$root/tests/lab/test_sequences.py" "$root/tests/cache/test_kv_types.py" "$root/tests/kernels/test_tensor_cores.py" "$root/tests/engine/test_ahead.py" \
  -m "not unsanitized" -k "not (test_tensor_cores and (no_configuration or many_sequences))"  # many configurations of the same code: 110 s
