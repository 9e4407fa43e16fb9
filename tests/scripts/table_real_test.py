"""scripts/table real: tables of the rows that hayloft eval writes."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Real(unittest.TestCase):
    def table(self, rows, *options):
        """Returns the lines of the table of these rows."""
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in [{"options": {"model": "m"}}, *rows]))
            return subprocess.run([sys.executable, ROOT / "scripts" / "table", "real", *options, path], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout.splitlines()

    def shown(self, scores):
        """Returns the cell of the scores in the table of these samples."""
        rows = [{"task": "vt", "ctx_size": 4096, "sample": sample, "attn": "dense", "measure": "share", "score": score,
                 "attended_share": 1, "near_bytes_per_token": 0, "link_bytes_per_token": 1}
                for sample, score in enumerate(scores)]
        return self.table(rows, "show")[-1].split(" | ")[1]

    def test_of_samples_that_are_right_or_wrong_the_interval_is_wilsons(self):
        self.assertEqual(self.shown([1] * 16 + [0] * 4), "80 (58 to 92)")

    def test_samples_that_are_right_in_part_have_the_interval_of_their_own_spread(self):
        self.assertEqual(self.shown([0.8] * 20), "80 (80 to 80)")
        self.assertEqual(self.shown([0.75, 0.85] * 10), "80 (78 to 82)")

    def test_scores_stand_under_the_bits_that_were_read(self):
        rows = [{"task": "niah_single_2", "ctx_size": 4096, "sample": 0, "attn": f"planes bits={bits}",
                 "method": {"name": "planes", "bits": bits}, "measure": "share", "score": 1} for bits in (32, 64)]
        table = self.table(rows, "equal", "--bits", "32,64")
        self.assertEqual(table[-3], "| method | 32 bits | 64 bits |")
        self.assertRegex(table[-1], r"\| planes \| .*, bits=32 \| .*, bits=64 \|")


if __name__ == "__main__":
    unittest.main()
