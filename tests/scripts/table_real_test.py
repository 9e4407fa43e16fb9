"""scripts/table real: tables of the rows that hayloft eval writes."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Real(unittest.TestCase):
    def shown(self, scores):
        """Returns the cell of the scores in the table of these samples."""
        rows = [{"task": "vt", "ctx_size": 4096, "sample": sample, "attn": "dense", "measure": "share", "score": score,
                 "attended_share": 1, "near_bytes_per_token": 0, "link_bytes_per_token": 1}
                for sample, score in enumerate(scores)]
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in [{"options": {"model": "m"}}, *rows]))
            table = subprocess.run([sys.executable, ROOT / "scripts" / "table", "real", "show", path], check=True,
                                   stdout=subprocess.PIPE, text=True).stdout
        return table.splitlines()[-1].split(" | ")[1]

    def test_of_samples_that_are_right_or_wrong_the_interval_is_wilsons(self):
        self.assertEqual(self.shown([1] * 16 + [0] * 4), "80 (58 to 92)")

    def test_samples_that_are_right_in_part_have_the_interval_of_their_own_spread(self):
        self.assertEqual(self.shown([0.8] * 20), "80 (80 to 80)")
        self.assertEqual(self.shown([0.75, 0.85] * 10), "80 (78 to 82)")


if __name__ == "__main__":
    unittest.main()
