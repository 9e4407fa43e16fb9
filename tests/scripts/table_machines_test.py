"""scripts/table machines: two machines side by side, from the files that hayloft link writes."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def profile(host, factor, reads=2):
    return {"schema": "hayloft.profile/1", "host": host, "processor": "A Processor", "date": "2026-11-23T09:30:00Z",
            "near_read_GBps": 20 * factor, "weight_stream_GBps": 10, "matmul_GFLOPps": 100,
            "layer_overhead_us": 12 / factor, "unmeasured_GBps": 0,
            "near_reads": [{"node": 0, "threads": n + 1, "GBps": (12, 20)[n] * factor} for n in range(reads)],
            "attention": [{"head_dim": 64, "group": 1, "dense_GBps": 12 * factor}],
            "spreads": [{"what": "near_reads", "runs": 9, "slowest": 0.9, "low": 0.95, "high": 1.05, "fastest": 1.1},
                        {"what": "near_reads", "runs": 9, "slowest": 0.99, "low": 0.99, "high": 1.01, "fastest": 1.01},
                        {"what": "weight_stream_GBps", "runs": 9, "slowest": 0.9, "low": 0.95, "high": 1.05, "fastest": 1.1},
                        {"what": "dense_GBps", "head_dim": 64, "group": 1, "runs": 3, "slowest": 0.3, "low": 0.5,
                         "high": 1, "fastest": 1.2}]}


def link(rate):
    one = {"page_bytes": 4096, "node": -1, "footprint_bytes": 1 << 30, "runs": 7}
    return {"link": {"device": "A GPU", "figures": [
        {**one, "test": "host_to_device_memcpy_ce", "engine": "ce", "piece_bytes": 0, "order": "", "value": rate, "unit": "GB/s",
         "slowest": rate, "fastest": rate},
        {**one, "test": "host_device_latency_sm", "engine": "sm", "piece_bytes": 16, "order": "random", "value": 1e4 / rate,
         "unit": "ns", "slowest": 9, "fastest": 9}]}}


class Machines(unittest.TestCase):
    def compared(self, a, b):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for file, said in (("a.json", a), ("b.json", b)):
                (folder / file).write_text(said if isinstance(said, str) else json.dumps(said))
            return subprocess.run([sys.executable, ROOT / "scripts" / "table", "machines", "a.json", "b.json"], cwd=folder,
                                  capture_output=True, text=True)

    def test_ratios_are_above_one_where_the_second_is_faster(self):
        table = self.compared(profile("attic", 1), profile("cellar", 2)).stdout
        for row in ("| near read | 20 | 40 | GB/s | 2.00 |  |", "| near read, node 0, threads 2 | 20 | 40 | GB/s | 2.00 |  |",
                    "| layer overhead | 12 | 6 | us | 2.00 |  |", "| weight stream | 10 | 10 | GB/s | 1.00 | within the spread |",
                    "| dense, d=64, group 1 | 12 | 24 | GB/s | 2.00 | unreliable |"):
            self.assertIn(row, table)

    def test_the_table_says_whose_they_are_and_what_only_one_has(self):
        table = self.compared(profile("attic", 1), profile("cellar", 1, reads=1)).stdout
        self.assertTrue(table.startswith("A: attic, A Processor, 2026-11-23T09:30:00Z\nB: cellar, A Processor, "))
        self.assertIn("\nonly in A: near read, node 0, threads 2\n", table)
        self.assertNotIn("only in B", table)

    def test_reports_of_a_link_are_compared_figure_by_figure(self):
        table = self.compared(link(12.5), link(25)).stdout
        self.assertIn("| host_to_device_memcpy_ce, ce, 4.0 KiB pages, 1.0 GiB | 12.5 | 25 | GB/s | 2.00 |  |", table)
        self.assertIn("| 800 | 400 | ns | 2.00 | within the spread |", table)

    def test_other_files_are_refused_by_name(self):
        for other in ('{"schema": "hayloft.plan/1"}', "[]", "none", '{"link": {"figures": [{"test": 1}]}}',
                      '{"schema": "hayloft.profile/1", "near_reads": [7]}'):
            run = self.compared(other, link(1))
            self.assertEqual(run.returncode, 1, other)
            self.assertRegex(run.stderr, r"^scripts/table: a\.json: [^\n]+\n$")


if __name__ == "__main__":
    unittest.main()
