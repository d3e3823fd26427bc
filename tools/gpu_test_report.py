#!/usr/bin/env python3
"""Gathers the gtest reports of a folder, into one JSON file with --out; fails as tools/gpu_test.sh
says."""
import argparse
import datetime
import fnmatch
import json
import pathlib
import re
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


def report_of(path):
    """The gtest report of the process whose exit code is at path; None without a whole one."""
    try:
        return json.loads(path.with_suffix(".json").read_text())
    except (OSError, ValueError):
        return None


def gather(folder):
    """The tests of all processes, whose exit codes and reports are called binary.shard.code and
    .json: [{name, result, seconds}], result passed, failed or skipped. A shard that died, or that
    failed with no failed test, counts as a failed test of its name."""
    tests = []
    for path in sorted(folder.glob("*.code")):
        binary = path.stem.split(".")[0]
        code, report = path.read_text().strip(), report_of(path)
        here = []
        for suite in (report or {}).get("testsuites", []):
            for test in suite["testsuite"]:
                if test["status"] != "RUN":
                    continue
                result = ("failed" if test.get("failures") else
                          "skipped" if test["result"] == "SKIPPED" else "passed")
                here.append({"name": f"{binary}/{suite['name']}.{test['name']}", "result": result,
                             "seconds": float(test["time"].rstrip("s"))})
        failed = any(test["result"] == "failed" for test in here)
        if report is None or code not in ("0", "1") or (code == "1") != failed:
            here.append({"name": path.stem, "result": "failed", "seconds": 0,
                         "why": f"exit code {code}" + ("" if report else ", no whole report")})
        tests += here
    return tests


def gather_sanitizers(folder):
    """{tool: tests that passed without a report}, and what went wrong."""
    clean, faults = {}, []
    for path in sorted(folder.glob("*.code")):
        tool = path.stem.split(".")[0]
        code, report = path.read_text().strip(), report_of(path)
        log = path.with_suffix(".log").read_text(errors="replace")
        if code == "0" and report and re.search("SUMMARY: 0 (errors|hazards)", log):
            clean[tool] = clean.get(tool, 0) + report["tests"]
            continue
        faults.append(f"{path.stem}: exit code {code}" + ("" if report else ", no whole report"))
        faults += ["  " + line for line in log.splitlines()
                   if line.startswith("=========") or "Failure" in line][:20]
    faults += [f"{tool}: no test ran" for tool, n in clean.items() if n == 0]
    return clean, faults


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
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--sanitizers", action="store_true", help="of tools/gpu_sanitize.sh")
    parser.add_argument("reports", type=pathlib.Path)
    arguments = parser.parse_args()
    outcome = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
               "card": smi("name"), "driver": smi("driver_version")}
    now = source_hash("tests")
    stamp = arguments.build / "tests" / "cuda_source_hash"
    outcome["source_hash"] = built = stamp.read_text().strip() if stamp.exists() else "unknown"
    faults = []
    if built != now:
        faults.append(f"{arguments.build} was built of sources {built}, here are {now}")
    if arguments.sanitizers:
        clean, reported = gather_sanitizers(arguments.reports)
        faults += reported
        outcome |= {"command": "tools/gpu_sanitize.sh", "clean_tests": clean, "faults": faults}
        summary = ", ".join(f"{tool} {n} tests" for tool, n in clean.items())
    else:
        tests = gather(arguments.reports)
        skips = {t["name"] for t in tests if t["result"] == "skipped"}
        faults += [f"failed: {t['name']} {t.get('why', '')}".rstrip()
                   for t in tests if t["result"] == "failed"]
        faults += [f"skipped, and not in {SKIPS.relative_to(ROOT)}: {name}"
                   for name in sorted(skips) if not any(
                       fnmatch.fnmatchcase(name, pattern) for pattern in expected_skips())]
        if not tests:
            faults.append(f"no test ran: build {arguments.build} first")
        n_passed = sum(t["result"] == "passed" for t in tests)
        outcome |= {"command": "tools/gpu_test.sh", "passed": n_passed, "skipped": sorted(skips),
                    "failed": sorted(t["name"] for t in tests if t["result"] == "failed"),
                    "tests": tests}
        summary = f"{n_passed} passed, {len(skips)} skipped"
    if arguments.out:
        arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
    for line in faults:
        print(line)
    print(f"{summary}, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
