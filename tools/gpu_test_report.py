#!/usr/bin/env python3
"""Gathers the gtest reports of a folder into one JSON file; fails as tools/gpu_test.sh says."""
import argparse
import datetime
import fnmatch
import json
import pathlib
import subprocess
import sys

from source_hash import ROOT, source_hash

SKIPS = ROOT / "tests" / "cuda" / "expected_skips.txt"


def expected_skips(path=SKIPS):
    """Patterns of tests' names, one a line; `#` starts a comment."""
    if not path.exists():
        return set()
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {line for line in lines if line}


def gather(folder):
    """The tests of all reports: [{name, result, seconds}], result passed, failed or skipped."""
    tests = []
    for path in sorted(folder.glob("*.json")):
        binary = path.stem
        report = json.loads(path.read_text())
        if "crashed" in report:
            tests.append({"name": binary, "result": "failed", "seconds": 0,
                          "why": f"exit code {report['crashed']}"})
            continue
        for suite in report["testsuites"]:
            for test in suite["testsuite"]:
                if test["status"] != "RUN":
                    continue
                result = ("failed" if test.get("failures") else
                          "skipped" if test["result"] == "SKIPPED" else "passed")
                tests.append({"name": f"{binary}/{suite['name']}.{test['name']}", "result": result,
                              "seconds": float(test["time"].rstrip("s"))})
    return tests


def smi(field):
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("reports", type=pathlib.Path)
    arguments = parser.parse_args()
    tests = gather(arguments.reports)
    faults = [f"failed: {t['name']} {t.get('why', '')}".rstrip()
              for t in tests if t["result"] == "failed"]
    skips = {t["name"] for t in tests if t["result"] == "skipped"}
    faults += [f"skipped, and not in {SKIPS.relative_to(ROOT)}: {name}"
               for name in sorted(skips) if not any(
                   fnmatch.fnmatchcase(name, pattern) for pattern in expected_skips())]
    if not tests:
        faults.append(f"no test ran: build {arguments.build} first")
    now = source_hash("tests")
    stamp = arguments.build / "tests" / "cuda_source_hash"
    built = stamp.read_text().strip() if stamp.exists() else "unknown"
    if built != now:
        faults.append(f"{arguments.build} was built of sources {built}, here are {now}")
    n_passed = sum(t["result"] == "passed" for t in tests)
    arguments.out.write_text(json.dumps({
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": "tools/gpu_test.sh",
        "card": smi("name"), "driver": smi("driver_version"), "source_hash": built,
        "passed": n_passed, "skipped": sorted(skips),
        "failed": sorted(t["name"] for t in tests if t["result"] == "failed"),
        "tests": tests}, indent=1) + "\n")
    for line in faults:
        print(line)
    print(f"{n_passed} passed, {len(skips)} skipped, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
