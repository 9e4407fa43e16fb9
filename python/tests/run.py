"""run.py TEST...: pytest on these files; exits with 77, which ctest calls skipped, where it cannot run or all is skipped."""

import importlib.util
import sys

missing = [name for name in ("numpy", "pytest") if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: {sys.executable} has no {' and no '.join(missing)}; on Debian: python3-numpy python3-pytest")
    sys.exit(77)

import pytest  # noqa: E402


class Counts:
    ran = 0

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call" and not report.skipped


counts = Counts()
code = pytest.main(["-rs", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[counts])
skipped = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and counts.ran == 0
sys.exit(77 if skipped else int(code))
