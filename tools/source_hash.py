#!/usr/bin/env python3
"""A hash of the sources in folders, which results of the GPU are keyed by: prints it, or with
--header FILE writes it as a C++ constant."""
import argparse
import hashlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ("src/replay/cuda", "bench/kernels")  # bench_kernels' results
# The GPU tests' results (tests/tools/CMakeLists.txt names the same).
TESTS = ("src/replay/cuda", "src/replay/capi", "tests/capi", "tests/cuda", "tests/replay")
PEERS = ("bench/kernels",)  # bench/kernels/peers.py's results, with suffix .py
SUFFIXES = (".h", ".cpp", ".cu", ".cuh")


def source_hash(folders, root=ROOT, suffixes=SUFFIXES):
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes:
                digest.update(path.relative_to(root).as_posix().encode() + b"\0")
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--header", type=pathlib.Path)
    parser.add_argument("folders", nargs="+")
    arguments = parser.parse_args()
    value = source_hash(arguments.folders)
    if arguments.header is None:
        print(value)
        return
    arguments.header.write_text("#pragma once\n\nnamespace replayssm::bench {\n"
                                f'inline constexpr char kSourceHash[] = "{value}";\n'
                                "}  // namespace replayssm::bench\n")


if __name__ == "__main__":
    main()
