#!/usr/bin/env python3
"""Checks every #include of src/ and bench/ against the directions of docs/architecture.md."""
import pathlib
import re
import sys

ALLOWED = {
    "core": {"core"},
    "replay": {"replay"},
    "ops": {"ops", "core", "replay"},
    "model": {"model", "ops", "core", "replay"},
    "runtime": {"runtime", "model", "ops", "core", "replay"},
    "jinja": {"jinja", "core"},
    "server": {"server", "jinja", "runtime", "model", "ops", "core", "replay"},
    "cli": {"cli", "server", "jinja", "runtime", "model", "ops", "core", "replay"},
}
ALLOWED["bench"] = {"bench", *ALLOWED["cli"]}  # all of src/, which includes nothing of bench/
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def fault(folder, backend, target):
    """Why a file of folder[/backend] may not include target; None if it may. What is the
    CPU's or CUDA's may include that device's faces below it; the rest is private to its folder, but
    to bench/."""
    parts = target.split("/")
    if parts[0] not in ALLOWED:
        return "is not a path from src/ or the root"
    if parts[0] not in ALLOWED[folder]:
        return f"{folder} may not include {parts[0]}"
    if folder == "bench":
        return None
    inside = parts[1] if len(parts) > 2 else None
    if inside in ("cpu", "cuda", "ref"):
        if folder != parts[0] and not (inside in ("cpu", "cuda") and backend == inside):
            return f"{parts[0]}/{inside} is private to {parts[0]}"
        if backend in ("cpu", "cuda", "ref") and backend != inside:
            return f"{backend} and {inside} never include one another"
    return None


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    faults = []
    n_files = 0
    for path in sorted([*(root / "src").rglob("*"), *(root / "bench").rglob("*")]):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        n_files += 1
        parts = path.relative_to(root).parts
        if parts[0] == "src":
            parts = parts[1:]
        backend = parts[1] if len(parts) > 2 else None
        if path.stem.endswith("_cuda"):
            backend = "cuda"
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if match is None:
                continue
            target = match.group(1)
            if parts[0] == "bench" and "/" not in target:
                continue  # of its own folder
            reason = fault(parts[0], backend, target)
            if reason is not None:
                faults.append(f"{path.relative_to(root)}:{number}: {target}: {reason}")
    for line in faults:
        print(line)
    print(f"include directions: {n_files} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
