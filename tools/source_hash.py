#!/usr/bin/env python3
"""The hash of the sources that a kind of GPU result is keyed by: prints it, or with --header FILE
writes it as a C++ constant."""
import argparse
import hashlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPP = (".h", ".cpp", ".cu", ".cuh")
# What is hashed: folders, and the suffixes of their files.
KINDS = {
    "kernels": (("src/replay/cuda", "bench/kernels", "bench/common"), CPP),
    "tests": (("src/replay/cuda", "src/replay/capi", "src/ops/cuda", "src/model/cuda",
               "src/runtime/cuda", "tests/capi", "tests/cuda", "tests/replay", "tests/ops/cuda"), CPP),
    "serve": (("src/replay/cuda", "src/ops/cuda", "src/model/cuda", "src/runtime/cuda",
               "bench/serve", "bench/common"), CPP),
    "peers": (("bench/kernels",), (".py",)),
}


def source_hash(kind, root=ROOT):
    folders, suffixes = KINDS[kind]
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
    parser.add_argument("kind", choices=KINDS)
    arguments = parser.parse_args()
    value = source_hash(arguments.kind)
    if arguments.header is None:
        print(value)
        return
    arguments.header.parent.mkdir(parents=True, exist_ok=True)
    arguments.header.write_text("#pragma once\n\nnamespace replayssm::bench {\n"
                                f'inline constexpr char kSourceHash[] = "{value}";\n'
                                "}  // namespace replayssm::bench\n")


if __name__ == "__main__":
    main()
