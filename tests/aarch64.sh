#!/usr/bin/env bash
# Builds the portable table for aarch64 with Debian's cross compiler, runs the ops under qemu-user and compares the
# bits with this machine's, table by table. Usage: tests/aarch64.sh BUILD_DIR [NATIVE_BUILD_DIR] (needs root to install the
# compiler); the second is a build of this machine's that is there already.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$1
native=${2:-$build/native}
if ! command -v aarch64-linux-gnu-g++ > /dev/null || ! command -v qemu-aarch64 > /dev/null; then
  apt-get update -qq
  apt-get install -y -qq g++-aarch64-linux-gnu qemu-user > /dev/null
fi
generator="Unix Makefiles"
if command -v ninja > /dev/null; then generator=Ninja; fi
common=(-G "$generator" -DCMAKE_BUILD_TYPE=Release -DLLMI_WERROR=ON -DCMAKE_DISABLE_FIND_PACKAGE_pybind11=ON -DLLMI_CUDA=OFF)
if [ ! -f "$native/CMakeCache.txt" ]; then cmake -S "$root" -B "$native" "${common[@]}" > "$build.log"; fi
cmake -S "$root" -B "$build/aarch64" "${common[@]}" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >> "$build.log"
for folder in "$native" "$build/aarch64"; do
  cmake --build "$folder" -j "$(nproc)" --target op_digests >> "$build.log" 2>&1 || { tail -50 "$build.log"; exit 1; }
done
"$native/op_digests" > "$build/native.txt"
qemu-aarch64 -L /usr/aarch64-linux-gnu "$build/aarch64/op_digests" > "$build/aarch64.txt"
count=$(grep -c . "$build/aarch64.txt")
test "$count" -ge 50
for table in $(cut -d' ' -f1 "$build/native.txt" | sort -u); do
  grep "^$table " "$build/native.txt" | cut -d' ' -f2- | diff - <(cut -d' ' -f2- "$build/aarch64.txt")
  echo "aarch64 reference equals $table here: $count digests"
done
