"""scripts/gpu-judge: what a run of gpu-check shows, beside what it must. Run: python3 tests/scripts/gpu_judge_test.py"""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu-judge"
LOADER = importlib.machinery.SourceFileLoader("gpu_judge", str(SCRIPT))
JUDGE = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_judge", LOADER))
LOADER.exec_module(JUDGE)

MILLION, GiB = 1 << 20, 1 << 30


def step(name, data, **more):
    return {"step": name, "outcome": "passed", "seconds": 1, "log_tail": "", "data": data, **more}


def figure(test, engine, footprint, piece, value, **more):
    return {"test": test, "engine": engine, "page_bytes": 4096, "footprint_bytes": footprint, "piece_bytes": piece,
            "order": "ascending", "value": value, "unit": "GB/s", **more}


def link():
    return {"link": {"figures": [
        figure("column_stream_f16", "sm", 16 * GiB, 8192, 40), figure("column_stream_f16", "both", 16 * GiB, 8192, 50),
        figure("column_stream_f16", "sm", GiB, 8192, 70), figure("row_gather", "sm", 16 * GiB, 512, 30),
        figure("row_gather", "sm", 16 * GiB, 1024, 45), figure("host_to_device_memcpy_ce", "ce", 16 * GiB, 0, 55)]}}


def bench(scan_ms, selection_ms, rows_ms, tokens=MILLION, **more):
    """Step 1 reads 256 MB of columns, and fetching 4 MB of rows, for one layer of one."""
    row = {"tokens": tokens, "columns": "f16", "attn": "sparq r=16 k=1024 w=0", "method": "sparq", "r": 16, "k": 1024,
           "window": 0, "ms_per_token": 10, "measured_layers": 1, "host_bytes": 24 * GiB,
           "stage_ms": {"column scan": scan_ms, "selection": selection_ms, "rows": rows_ms},
           "link_bytes": {"columns": 256000000, "rows": 4000000}}
    return {"schema": "hayloft.bench/1", "device": "cuda", "link": "both", "layers": 1, "query_heads": 32, "kv_heads": 8,
            "head_dim": 128, "device_memory": {"budget_bytes": 15 * GiB, "peak_bytes": 10 * GiB,
                                               "driver_peak_bytes": 16 * GiB}, "rows": [row], **more}


def needle(device, sparq_answer):
    rows = [{"attn": attn, "method": attn, "tokens": 65536, "depth": 0.0, "answer": answer, "hit": answer == "123456"}
            for attn in ("dense", "sparq", "topk") for answer in [sparq_answer if attn == "sparq" else "123456"]]
    return {"schema": "hayloft.needle/1", "model": "m", "device": device, "seed": 1, "rows": rows}


def report(*steps):
    return {"schema": "hayloft.gpu-check/1", "steps": list(steps)}


def line(what, *steps):
    return next(line for line in JUDGE.judge(report(*steps)) if what in line["what"])


class Rates(unittest.TestCase):
    def test_step_1_is_held_to_the_best_column_stream_over_the_nearest_footprint(self):
        good = line("f16 columns, 1M", step("link", link()), step("bench", bench(5.5, 0.5, 0.15)))
        self.assertEqual(good["verdict"], "met")  # 46.5 GB/s of the 50 that both engines give over 16 GiB
        self.assertEqual(good["figure"], "46.5 GB/s by both: 0.93 of 50.0 (both, over 16.0 GiB); 0.85 of whole copies")
        slow = line("f16 columns, 1M", step("link", link()), step("bench", bench(6, 0.5, 0.15)))
        self.assertEqual(slow["verdict"], "NOT met")

    def test_the_link_is_that_of_the_pages_of_keys_and_values(self):
        measured = link()
        for small in measured["link"]["figures"]:
            small["kv_pages"] = False
        measured["link"]["figures"].append(
            figure("column_stream_f16", "sm", 16 * GiB, 8192, 60, kv_pages=True, transparent=True) | {"page_bytes": 2 << 20})
        shown = line("f16 columns, 1M", step("link", measured), step("bench", bench(5.5, 0.5, 0.15)))
        self.assertEqual(shown["figure"], "46.5 GB/s by both: 0.78 of 60.0 (sm, over 16.0 GiB)")

    def test_notes_of_the_backend_stand_beside_the_rate(self):
        shown = line("f16 columns, 1M", step("link", link()), step("bench", bench(5.5, 0.5, 0.15, notes=["nothing is pinned"])))
        self.assertIn("; nothing is pinned", shown["figure"])

    def test_the_fastest_variant_of_the_link_counts(self):
        both = step("link", link()), step("a", bench(9, 0.5, 0.15)), step("b", bench(5.5, 0.5, 0.15))
        self.assertEqual(line("f16 columns, 1M", *both)["verdict"], "met")

    def test_a_shorter_context_shows_its_figure_but_meets_nothing(self):
        for what in ("f16 columns, 1M", "selection of 1024", "fetch of 1024"):
            shown = line(what, step("link", link()), step("bench", bench(5.5, 0.5, 0.15, tokens=131072)))
            self.assertEqual(shown["verdict"], "NOT met", what)
            self.assertIn("at 131072 tokens", shown["figure"])

    def test_selection_and_fetching_are_held_to_their_shares(self):
        good = step("link", link()), step("bench", bench(5, 0.7, 0.16))
        self.assertEqual(line("selection of 1024", *good)["verdict"], "met")  # 0.14
        self.assertEqual(line("fetch of 1024", *good)["verdict"], "met")  # 25 of 30 GB/s in rows of 512 bytes
        slow = step("link", link()), step("bench", bench(5, 0.8, 0.17))
        self.assertEqual(line("selection of 1024", *slow)["verdict"], "NOT met")
        self.assertEqual(line("fetch of 1024", *slow)["verdict"], "NOT met")


class Memory(unittest.TestCase):
    def test_every_peak_of_device_memory_is_held_to_its_budget(self):
        taken = step("bench", bench(5, 0.7, 0.16), device_before_MiB=4, device_peak_MiB=15000)
        self.assertEqual(line("the arena's peak", taken)["verdict"], "met")
        self.assertEqual(line("the driver's peak", taken)["verdict"], "NOT met")
        self.assertEqual(line("nvidia-smi", taken)["figure"], "14996 of 16000 MiB (bench)")
        self.assertEqual(line("nvidia-smi", taken)["verdict"], "met")

    def test_what_is_set_aside_for_cuda_is_what_the_backend_sets_aside(self):
        header = (ROOT / "gpu" / "cuda_memory.h").read_text()
        said = re.search(r"cuda_context_bytes = (\d+) \* cuda_mebibyte", header)
        self.assertEqual(int(said.group(1)), JUDGE.CUDA_CONTEXT_MiB)


class Answers(unittest.TestCase):
    def test_answers_are_compared_with_the_cpus(self):
        same = line("needle at 64k", step("gpu", needle("cuda", "12")), step("cpu", needle("cpu", "12")))
        self.assertEqual(same["verdict"], "met", "both miss one")
        self.assertEqual(same["figure"], "3 of 3; found dense 1/1, sparq 0/1, topk 1/1")
        other = line("needle at 64k", step("gpu", needle("cuda", "12")), step("cpu", needle("cpu", "123456")))
        self.assertEqual(other["verdict"], "NOT met")
        self.assertEqual(line("needle at 64k", step("gpu", needle("cuda", "12")))["verdict"], "not measured")

    def test_tests_that_were_not_run_to_their_end_are_not_green(self):
        tests = step("tests", {"passed": 9, "failed": 0, "skipped": 0})
        self.assertEqual(line("CUDA tests", tests)["verdict"], "met")
        self.assertEqual(line("CUDA tests", {**tests, "outcome": "out of time"})["verdict"], "NOT met")
        skipped = step("tests", {"passed": 0, "failed": 0, "skipped": 9})
        self.assertEqual(line("CUDA tests", skipped)["verdict"], "not measured")

    def test_a_suite_out_of_time_has_hung_unless_it_was_under_a_checker(self):
        data = {"passed": 9, "failed": 0, "skipped": 0, "out_of_time": 1}
        late = [step(name, data) | {"outcome": "out of time"} for name in ("tests", "sanitizer")]
        self.assertEqual(line("CUDA tests", *late)["verdict"], "NOT met")
        checked = line("under compute-sanitizer", *late)
        self.assertEqual(checked["verdict"], "not measured")
        self.assertEqual(checked["figure"], "9 passed, 0 failed, 0 skipped, 1 suites out of time; out of time")
        wrong = step("sanitizer", {**data, "failed": 1}) | {"outcome": "failed, exit code 1"}
        self.assertEqual(line("under compute-sanitizer", wrong)["verdict"], "NOT met")


class Reports(unittest.TestCase):
    def test_what_a_launch_takes_stands_beside_the_steps(self):
        figures = [figure(f"launch_{how}", "sm", 0, 0, ns, unit="ns")
                   for how, ns in (("queued", 1900), ("live", 2400), ("and_wait", 9120))]
        lines = JUDGE.judge(report(step("link", {"link": {"figures": figures}})))
        found = [line["figure"] for line in lines if line["what"] == "a kernel that does nothing"]
        some = JUDGE.judge(report(step("link", {"link": {"figures": figures[1:]}})))
        self.assertNotIn("a kernel that does nothing", [line["what"] for line in some], "what is missing counts as absent")
        self.assertEqual(found, ["1.90 us queued ahead, 2.40 us as it is launched, 9.12 us waited for"])

    def test_an_empty_report_has_every_line_unmeasured(self):
        lines = JUDGE.judge(report())
        self.assertEqual([line["verdict"] for line in lines], ["not measured"] * 15)

    def test_fields_of_another_type_than_they_should_have_count_as_absent(self):
        lines = JUDGE.judge(report(7, step("tests", [1]), step("link", {"link": {"figures": [1, "x"]}}),
                                   step("bench", {"schema": "hayloft.bench/1", "device": "cuda", "rows": [1, {"k": "x"}]})))
        self.assertEqual({line["verdict"] for line in lines}, {"not measured"})

    def test_the_report_keeps_its_order_and_is_judged_again_alike(self):
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "gpu-check.json"
            taken = report(step("link", link()), step("bench", bench(5.5, 0.5, 0.15)))
            path.write_text(json.dumps(taken))
            first = self.run_script(path, "--json", path)
            self.assertEqual(first.returncode, 1)
            self.assertIn("not measured", first.stderr)
            left = json.loads(path.read_text())
            self.assertEqual(list(left), ["schema", "steps", "shows"])
            self.assertEqual(left["steps"], taken["steps"])
            self.assertEqual(self.run_script(path).stdout, first.stdout)

    def test_of_a_partial_report_only_what_was_measured_counts(self):
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "gpu-check.json"
            path.write_text(json.dumps(report()))
            self.assertEqual(self.run_script(path).returncode, 1)
            self.assertEqual(self.run_script(path, "--partial").returncode, 0)

    def test_what_is_no_report_is_named_with_the_reason_and_what_to_do(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            cases = {"broken.json": ('{"schema": nothing}', "not valid JSON at character 12"),
                     "bench.json": ('{"schema": "hayloft.bench/1"}', "hayloft.gpu-check/1"), "list.json": ("[]", "no schema"),
                     "bytes.json": (b"\xff\xfe", "no UTF-8")}
            for file, (text, _) in cases.items():
                (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())
            cases.update({"none.json": ("", "No such file"), ".": ("", "no regular file"), "/dev/zero": ("", "no regular file")})
            for file, (_, reason) in cases.items():
                run = self.run_script(folder / file)
                self.assertEqual(run.returncode, 1, file)
                self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
                for part in (reason, "name the gpu-check.json"):
                    self.assertIn(part, run.stderr)

    @staticmethod
    def run_script(*arguments):
        return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)


class Check(unittest.TestCase):
    """scripts/gpu-check with a program and a suite that only say what they are to say."""

    def check(self, folder, path):
        for name, text in (("bin/hayloft", 'case "$1" in --version) echo hayloft;; --list-devices) echo "cuda  A card";; esac'),
                           ("tests/a_test_cuda", 'echo "[       OK ] A.IsRight (3 ms)"')):
            file = folder / "tree" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"#!/bin/sh\n{text}\n")
            file.chmod(0o755)
        run = subprocess.run(["bash", ROOT / "scripts" / "gpu-check", folder / "out", "tests"], capture_output=True, text=True,
                             env={"PATH": path, "HAYLOFT_BUILD": str(folder / "tree")})
        return run.returncode, (folder / "out" / "summary.md").read_text()

    def test_the_summary_begins_with_what_the_run_shows(self):
        with tempfile.TemporaryDirectory() as name:
            status, summary = self.check(pathlib.Path(name), os.environ["PATH"])
            self.assertEqual(status, 0, summary)
            self.assertRegex(summary, r"\| CUDA tests +\| +1 passed, 0 failed, 0 skipped; passed \| +all pass \| +met \|")

    def test_without_python_the_report_is_left_to_be_judged_elsewhere(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "bin").mkdir()
            for program in ("bash sh env cat tr sed awk sort grep head tail date mktemp rm cp mv mkdir timeout nproc uname dirname "
                            "basename kill sleep ls find").split():
                if found := shutil.which(program):
                    (folder / "bin" / program).symlink_to(found)
            status, summary = self.check(folder, str(folder / "bin"))
            self.assertEqual(status, 1)
            self.assertIn("Run gpu-judge gpu-check.json where there is one.", summary)
            self.assertTrue((folder / "out" / "gpu-check.json").exists())


if __name__ == "__main__":
    unittest.main()
