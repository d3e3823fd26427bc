"""The tools that read the GPU's results: targets, staleness, tables."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import bench_tables  # noqa: E402
import check_targets  # noqa: E402
import gpu_results  # noqa: E402
import gpu_tables  # noqa: E402
import gpu_test_report  # noqa: E402
import roofline_svg  # noqa: E402
import serve_results  # noqa: E402
from source_hash import source_hash  # noqa: E402


def cell(window, batch, us, way="replay"):
    return {"name": f"qw4b/fp16/{way}/T{window}/B{batch}", "way": way, "window": window,
            "accepted": window, "batch": batch, "run": 0, "us": us, "must_move_bytes": 1e6,
            "bytes_per_second": 1e6 / us * 1e6, "floor_us": us / 2, "floor_fraction": 0.5}


def shard(cells, source=None):
    return {"source_hash": source or source_hash("kernels"), "shape": "qw4b", "dtype": "fp16",
            "model": "Qwen3.5-4B", "interval": 16, "cells": cells,
            "runs": [{"date": "2026-11-29", "card": "a card", "driver": "1", "cuda": "13.0",
                      "command": "bench_kernels", "read_bytes_per_second": 4e12,
                      "copy_bytes_per_second": 4e12}]}


class Results(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, cells, source=None):
        (self.path / "h200_qw4b_fp16.json").write_text(json.dumps(shard(cells, source)))

    def check(self, targets):
        (self.path / "targets.json").write_text(json.dumps(targets))
        return subprocess.run(
            [sys.executable, ROOT / "tools/check_targets.py", "--results", self.path, "--targets",
             self.path / "targets.json"], capture_output=True, text=True)

    def test_least_reached_and_goal_missed_passes_and_lists_the_goal(self):
        self.write([cell(1, 256, 90.0)])
        done = self.check({"cells": {"qw4b/fp16/replay/T1/B256": {"least": 91, "goal": 82}}})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("goal missed: 1\n  qw4b/fp16/replay/T1/B256: 90 us, goal 82", done.stdout)
        self.assertIn("1 of 1 cells reach their least", done.stdout)

    def test_missed_least_fails(self):
        self.write([cell(1, 256, 92.0)])
        done = self.check({"cells": {"qw4b/fp16/replay/T1/B256": {"least": 91, "goal": 82}}})
        self.assertEqual(done.returncode, 1)
        self.assertIn("least missed: 1\n  qw4b/fp16/replay/T1/B256: 92 us", done.stdout)

    def test_a_cell_without_a_figure_fails_with_its_reason(self):
        self.write([{"name": "qw4b/fp16/replay/T4/B256", "way": "replay", "window": 4,
                     "batch": 256, "run": 0, "skipped": "no GDN kernel"}])
        done = self.check({"cells": {"qw4b/fp16/replay/T4/B256": {"least": 129},
                                     "qw4b/fp16/replay/T8/B256": {"least": 157}}})
        self.assertEqual(done.returncode, 1)
        self.assertIn("not measured: 2\n  qw4b/fp16/replay/T4/B256: no GDN kernel", done.stdout)

    def test_ratio_counts_from_the_least_batch_on(self):
        self.write([cell(1, 32, 10.0), cell(8, 32, 20.0), cell(1, 64, 10.0), cell(8, 64, 15.0)])
        ratio = {"dtype": "fp16", "window": 8, "over": 1, "min_batch": 64, "goal": 1.45}
        done = self.check({"cells": {}, "ratios": [ratio]})
        self.assertEqual(done.returncode, 0)
        self.assertIn("goal missed: 1\n  qw4b/fp16/replay/T8/B64 over T1: 1.50", done.stdout)

    def serve(self, file, context, names):
        (self.path / f"h200_serve_{file}.json").write_text(json.dumps(
            {"model": "m", "source_hash": file, "cells": [
                {"name": f"{name}/fp32/T1/A1.0/B1/C{context}", "batch": 1, "context": context, "ms": 1.0,
                 "tokens_per_second": speed} for name, speed in names.items()]}))

    def test_a_model_of_two_files_is_one_and_ratios_are_of_the_same_sources(self):
        self.serve("m", 1024, {"plain": 100.0, "replay": 130.0})
        self.serve("m_more", 1024, {"exact/replay": 120.0})
        self.serve("m_long", 16384, {"plain": 10.0, "replay": 30.0})
        cells = serve_results.models(self.path)["m"]
        self.assertEqual({name: serve_results.speed_up(cell, cells) for name, cell in cells.items()}, {
            "plain/fp32/T1/A1.0/B1/C1024": 1.0, "replay/fp32/T1/A1.0/B1/C1024": 1.3,
            "exact/replay/fp32/T1/A1.0/B1/C1024": None,
            "plain/fp32/T1/A1.0/B1/C16384": 1.0, "replay/fp32/T1/A1.0/B1/C16384": 3.0})
        self.assertIsNone(serve_results.speed_up({"name": "snapshots", "skipped": "no memory"}, cells))
        for name, value in (("replay", 1.3), ("exact/replay", None), ("snapshots", None)):
            target = {"cell": f"{name}/fp32/T1/A1.0/B1/C1024", "over": "plain/fp32/T1/A1.0/B1/C1024"}
            self.assertEqual(serve_results.target_value(target, cells), value)

    def test_a_cell_in_two_files_of_a_model_is_refused(self):
        self.serve("m", 1024, {"plain": 100.0})
        self.serve("m_more", 1024, {"plain": 90.0})
        with self.assertRaisesRegex(ValueError, "plain/fp32/T1/A1.0/B1/C1024 is in two files"):
            serve_results.models(self.path)

    def test_results_of_other_sources_are_named(self):
        self.write([cell(1, 256, 90.0)], source="0123456789abcdef")
        self.assertEqual(len(gpu_results.stale(self.path)), 1)
        self.write([cell(1, 256, 90.0)])
        self.assertEqual(gpu_results.stale(self.path), [])

    def test_a_broken_file_is_named(self):
        (self.path / "h200_qw4b_fp16.json").write_text("{")
        with self.assertRaisesRegex(ValueError, "h200_qw4b_fp16.json"):
            gpu_results.cells(self.path)

    def test_tables_hold_the_figures_and_mark_what_is_not_measured(self):
        self.write([cell(1, 256, 90.54), cell(1, 256, 141.2, "plain"), cell(4, 256, 129.0)])
        text = gpu_tables.document(self.path)
        self.assertIn("| 256 | 1 | - | 90.5 (0.50) | - | - | - | - | - | - | - |", text)
        self.assertIn("| 256 | 1 | - | 141 | - | - | - | - |", text)
        self.assertIn("| 256 | 4 | - | 129 (0.50) |", text)

    def test_tables_take_the_fastest_peer_of_a_width(self):
        self.write([cell(1, 256, 90.0)])
        base = {"shape": "qw4b", "window": 1, "batch": 256, "kind": "replay", "run": 0}
        run = {"card": "a card", "date": "2026-11-29", "torch": "2", "triton": "3",
               "packages": ["fla-core==0.6.0"], "replayssm_commit": "a848494101234"}
        sweep = {**base, "kind": "sweep", "window": 2048, "batch": 16, "dtype": "fp32"}
        (self.path / "h200_peers.json").write_text(json.dumps(
            {"source_hash": "x", "runs": [run], "cells": [
                {**base, "dtype": "bf16", "us": 128.4}, {**base, "dtype": "bf16", "us": 120.1},
                {**base, "dtype": "fp32", "failed": "no"}, {**sweep, "us": 1234.0}]}))
        text = gpu_tables.document(self.path)
        self.assertIn("| - | - | - | 120 | - |", text)
        self.assertIn("ReplaySSM a84849410.", text)
        self.assertIn("chunked kernel: qw4b 1.23 ms.", text)

    def test_picture_has_a_mark_for_each_cell_in_its_limits(self):
        self.write([cell(1, 256, 5.0), cell(4, 256, 5.0), cell(2, 256, 5.0)])
        cells = gpu_results.cells(self.path).values()
        drawn, none = (roofline_svg.roofline(c, {"qw4b": "Qwen3.5-4B"}) for c in (cells, []))
        count = [len(list(xml.etree.ElementTree.fromstring(x).iter())) for x in (drawn, none)]
        self.assertEqual(count[0] - count[1], 2)  # T = 2 is not in the picture


def case(name, **more):
    return {"name": name, "status": "RUN", "result": "COMPLETED", "time": "1.5s", **more}


class TestReport(unittest.TestCase):
    def gather(self, *shards):
        """What one binary's shards left: (exit code, report)."""
        with tempfile.TemporaryDirectory() as folder:
            for i, (code, report) in enumerate(shards):
                stem = pathlib.Path(folder) / f"step_cuda_test.{i}"
                stem.with_suffix(f".{i}.code").write_text(f"{code}\n")
                if report is not None:
                    stem.with_suffix(f".{i}.json").write_text(report)
            return gpu_test_report.gather(pathlib.Path(folder))

    def test_results_of_a_binary(self):
        suite = [case("Good"), case("Bad", failures=[{"failure": "x"}]),
                 case("Left", result="SKIPPED"), case("Filtered", status="NOTRUN")]
        tests = self.gather((1, json.dumps({"testsuites": [{"name": "Step",
                                                            "testsuite": suite}]})))
        self.assertEqual([(t["name"], t["result"]) for t in tests],
                         [("step_cuda_test/Step.Good", "passed"),
                          ("step_cuda_test/Step.Bad", "failed"),
                          ("step_cuda_test/Step.Left", "skipped")])

    def test_shards_are_one_binary_and_a_crash_names_its_shard(self):
        one, two = (json.dumps({"testsuites": [{"name": "Step", "testsuite": [case(name)]}]})
                    for name in ("One", "Two/int8"))
        tests = self.gather((0, one), (139, None), (0, '{"testsuites": []}'), (0, two),
                            (0, '{"testsuites": [{"na'), (1, one))
        self.assertEqual([(t["name"], t["result"]) for t in tests],
                         [("step_cuda_test/Step.One", "passed"),
                          ("step_cuda_test.1", "failed"),
                          ("step_cuda_test/Step.Two/int8", "passed"),
                          ("step_cuda_test.4", "failed"),
                          ("step_cuda_test/Step.One", "passed"),
                          ("step_cuda_test.5", "failed")])

    def test_only_a_run_of_everything_is_recorded(self):
        report = json.dumps({"testsuites": [{"name": "Step", "testsuite": [case("Good")]}]})
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            binary, record = path / "tests" / "step_cuda_test", path / "h200_tests.json"
            binary.parent.mkdir()
            binary.write_text("#!/bin/sh\nfor flag; do case $flag in --gtest_output=json:*)\n"
                              f"echo '{report}' > \"${{flag#*json:}}\";; esac; done\n")
            binary.chmod(0o755)
            (path / "tests" / "cuda_source_hash").write_text(source_hash("tests"))
            environment = {**os.environ, "BUILD": folder, "RESULTS": folder, "SHARDS": "1"}
            for flags, recorded in ((["--gtest_filter=*"], False), ([], True)):
                done = subprocess.run([ROOT / "tools" / "gpu_test.sh", *flags], env=environment,
                                      capture_output=True, text=True, check=True)
                self.assertIn("1 passed, 0 skipped, 0 faults", done.stdout)
                self.assertEqual(record.exists(), recorded)
            self.assertEqual(json.loads(record.read_text())["passed"], 1)

    def test_list_of_skips(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "skips.txt"
            path.write_text("# why\nstep_cuda_test/Step.Left  # no kernel\n\n")
            self.assertEqual(gpu_test_report.expected_skips(path), {"step_cuda_test/Step.Left"})


class BenchTables(unittest.TestCase):
    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, ROOT / "tools" / "bench_tables.py", *arguments],
                              capture_output=True, text=True)

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        rows = [{"layer": "SOME LAYER", "batch": 1, "window": 1, "state": state, "dtype": dtype,
                 "us": us, "speed_up": 100 / us}
                for state, dtype, us in (("plain", "fp32", 100), ("plain", "fp16", 70),
                                         ("replay", "fp32", 60), ("replay", "fp16", 50),
                                         ("replay", "int8", 40))]
        (self.path / "cpu_layers.json").write_text(
            json.dumps({"read_bytes_per_second": 12.3e9, "layers": rows}))

    def tearDown(self):
        self.folder.cleanup()

    def test_nothing_that_is_published_is_overwritten_unasked(self):
        published = [bench_tables.DOCUMENT, *(ROOT / "docs" / "img").glob("*.svg")]
        before = [path.read_bytes() for path in published]
        done = self.run_tool("layers", "--results", self.path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("12.3 GB/s", done.stdout)
        self.assertIn("| 1 | 1 | 100 | 70 (1.43x) | 60 (1.67x) | 50 (2.00x) | 40 (2.50x) |", done.stdout)
        self.assertEqual(self.run_tool().returncode, 0)
        self.assertEqual([path.read_bytes() for path in published], before)

    def test_write_replaces_the_named_table_alone(self):
        document = self.path / "page.md"
        document.write_text("a\n<!-- layers -->\nold\n<!-- end -->\nb\n"
                            "<!-- model -->\nkept\n<!-- end -->\n")
        arguments = ("--results", self.path, "--document", document, "--write")
        done = self.run_tool("layers", *arguments)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        text = document.read_text()
        self.assertIn("SOME LAYER", text)
        self.assertNotIn("old", text)
        self.assertTrue(text.startswith("a\n<!-- layers -->\n"))
        self.assertTrue(text.endswith("b\n<!-- model -->\nkept\n<!-- end -->\n"))
        # A document without the place for a table stays as it is.
        done = self.run_tool("layers", "gpu", *arguments)
        self.assertEqual(done.returncode, 1)
        self.assertIn("gpu", done.stderr)
        self.assertEqual(document.read_text(), text)

    def test_what_it_does_not_know_is_refused(self):
        for arguments, part in ((["--frob"], "--frob"), (["tables"], "tables"),
                                (["layers", "--results", "/no/such/folder"], "/no/such/folder")):
            done = self.run_tool(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(part, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


class Card(unittest.TestCase):
    def test_the_picture_takes_the_rates_of_the_benches(self):
        self.assertEqual((roofline_svg.READ, roofline_svg.LAUNCH), (4.55e12, 2e-6))


class Targets(unittest.TestCase):
    def test_every_target_is_a_cell_that_the_bench_measures(self):
        targets = json.loads(check_targets.TARGETS.read_text())
        for name, target in targets["cells"].items():
            self.assertRegex(
                name, r"^(qw4b|qw122b|nano30b|nano4b|super|granite)/(fp32|fp16|bf16|int8)/"
                r"(replay/T(1|4|8)|plain/T1)/B(1|8|32|64|128|256|512|1024)$")
            if "goal" in target:
                self.assertLessEqual(target["goal"], target["least"], name)


    def test_sanitizers_report_and_crash_are_faults(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            zero, one = "========= ERROR SUMMARY: 0 errors", "========= RACECHECK SUMMARY: 1 hazards"
            for name, code, log in (("memcheck.0", 0, zero), ("memcheck.1", 0, zero),
                                    ("memcheck.2", 139, zero), ("racecheck.0", 0, one),
                                    ("synccheck.0", 0, zero)):
                (path / f"{name}.code").write_text(f"{code}\n")
                (path / f"{name}.log").write_text(f"x\n{log}\n")
                (path / f"{name}.json").write_text(
                    json.dumps({"tests": 0 if name.startswith("sync") else 3}))
            clean, faults = gpu_test_report.gather_sanitizers(path)
        self.assertEqual(clean, {"memcheck": 6, "synccheck": 0})
        self.assertEqual(faults, ["memcheck.2: exit code 139", "  " + zero,
                                  "racecheck.0: exit code 0", "  " + one,
                                  "synccheck: no test ran"])


if __name__ == "__main__":
    unittest.main()