"""Ranks of MPI on two machines, which two network namespaces of this one stand for: root alone can make them.

`python tests/support/mpi_namespaces.py [MODEL]`: `mpirun -n 3 llmi generate` over TCP, one rank in the first namespace and two in the second,
prints what `llmi generate` prints; and ranks of other files, versions, numerics and byte orders are refused by name, with both hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmi.testing import tiny_model

HOSTS = ("10.213.57.1", "10.213.57.2")
#: Instead of ssh: mpirun calls it with the host and the command.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
case $host in {first}|llmi-host-0) number=0;; *) number=1;; esac
exec ip netns exec {name}-$number unshare --uts sh -c "hostname llmi-host-$number; $*"
"""
RANK = "int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')))"
#: A program whose rank 2 runs something else.
OTHER = """
import os, sys
import llmi.ranks.workers as workers
if {rank} == 2:
    {change}
from llmi import LLM
try:
    LLM(sys.argv[1], tensor_parallel_size=3, distributed_executor_backend="mpi")
except Exception as error:
    sys.stdout.write(f"{{error}}\\n")
"""
CHANGES = {
    "version 0.0 instead of": "workers.llmi.__version__ = '0.0'",
    "numerics 0 instead of": "workers.NUMERICS_VERSION = 0",
    "byte order big instead of": "sys.byteorder = 'big'",
    "other files": "sys.argv[1:2] = []",
}


def call(*command: str) -> None:
    """Runs it."""
    subprocess.run(command, check=True)


@contextlib.contextmanager
def namespaces() -> Iterator[str]:
    """The beginning of the names of two, which can reach each other."""
    name = f"llmi-{os.getpid()}"
    spaces = [f"{name}-{number}" for number in range(2)]
    ends = [f"llmi{number}" for number in range(2)]
    try:
        for space in spaces:
            call("ip", "netns", "add", space)
            call("ip", "-n", space, "link", "set", "lo", "up")
        call("ip", "link", "add", ends[0], "netns", spaces[0], "type", "veth", "peer", "name", ends[1], "netns", spaces[1])
        for space, end, host in zip(spaces, ends, HOSTS, strict=True):
            call("ip", "-n", space, "addr", "add", f"{host}/24", "dev", end)
            call("ip", "-n", space, "link", "set", end, "up")
        yield name
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False)


def run(name: str, folder: Path, command: Sequence[str]) -> str:
    """What three ranks print; their errors come to this program's."""
    agent = folder / "agent.sh"
    agent.write_text(AGENT.format(first=HOSTS[0], name=name))
    agent.chmod(0o700)
    mpirun = shutil.which("mpirun", path=str(Path(sys.prefix) / "bin")) or shutil.which("mpirun")
    if mpirun is None:
        raise SystemExit("no mpirun: pip install 'llmi[mpi]'")
    places = f"{HOSTS[0]}:1,{HOSTS[1]}:2"
    network = str(HOSTS[0].rsplit(".", 1)[0]) + ".0/24"
    if "Open MPI" in subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True).stdout:
        own = ["--allow-run-as-root", "--host", places, "--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_if_include", network]
        own += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network]
    else:
        own = ["-launcher", "ssh", "-launcher-exec", str(agent), "-hosts", places, "-iface", "llmi0"]
    inside = ["unshare", "--uts", "sh", "-c", 'hostname llmi-host-0; exec "$@"', "sh"]
    start = ["ip", "netns", "exec", f"{name}-0", *inside, mpirun, *own, "-n", "3"]
    return subprocess.run([*start, *command], stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a model's path (default: a tiny one)")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as temporary, namespaces() as name:
        folder = Path(temporary)
        path = model or str(tiny_model(vocab_size=257, path=folder / "model"))
        generate = [sys.executable, "-m", "llmi", "generate", "-m", path, "-p", "Once upon a time", "--max-tokens", "40", "--seed", "7"]
        alone = subprocess.run(generate, stdout=subprocess.PIPE, text=True, check=True).stdout
        several = run(name, folder, [*generate, "--tensor-parallel-size", "3", "--distributed-executor-backend", "mpi"])
        problems = [] if alone == several != "" else [f"other text: {several!r} instead of {alone!r}"]
        other = str(tiny_model(vocab_size=257, path=folder / "other"))
        for want, change in CHANGES.items():
            script = OTHER.format(rank=RANK, change=change)
            said = run(name, folder, [sys.executable, "-c", script, path, other]).splitlines()
            if len(said) != 3 or not all(want in line and "llmi-host-1" in line and "llmi-host-0" in line for line in said):
                problems.append(f"{want}: {said}")
    print("\n".join([*problems, f"three ranks over TCP, {len(CHANGES)} refusals: {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
