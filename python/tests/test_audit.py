"""The audit of a session beside the program's."""

import json
import subprocess

import pytest
from conftest import NEEDLE_MODEL

import hayloft

PROMPT = "the quiet hay lies in the loft and nobody counts what the wind has carried over the hills " * 40
METHOD = "sparq:r=8:k=16"


@pytest.fixture(scope="module")
def model(machine):
    return hayloft.Model(NEEDLE_MODEL, machine=machine)


def test_measures_what_the_program_does(model, program):
    session = model.session(attn=METHOD, block_tokens=16)
    with session.audit(1.0) as audit:
        text = session.generate(PROMPT, 12)
    report = audit.report
    run = [program, "generate", "-m", NEEDLE_MODEL, "-p", PROMPT, "-n", "12", "--attn", METHOD, "--block-tokens", "16", "--device",
           "cpu", "--threads", "1", "--audit=100%", "--audit-json", "-"]
    made = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    theirs = json.loads(made[made.index('{'):])
    assert report["schema"] == theirs["schema"] and report["calls"] == theirs["calls"] > 0
    if report["dropped"] == theirs["dropped"] == 0:  # what is dropped depends on time
        assert report["rows"] == theirs["rows"]
    assert 0 < min(row["mass"]["worst"] for row in report["rows"]) < 1
    assert "layer" in str(audit)
    assert text == model.session(attn=METHOD, block_tokens=16).generate(PROMPT, 12)


def test_ends_with_its_block(model):
    session = model.session(attn=METHOD, block_tokens=16)
    with session.audit(1.0) as audit:
        session.generate(PROMPT, 4)
    calls = audit.report["calls"]
    session.generate("hay", 4)
    assert audit.report["calls"] == calls
    fork = session.fork()
    fork.generate("hay", 4)
    assert audit.finish()["calls"] == calls


def test_a_share_out_of_range_is_refused(model):
    with pytest.raises(hayloft.Error, match="share"):
        model.session().audit(2.0)
