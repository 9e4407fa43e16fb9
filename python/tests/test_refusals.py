"""Sessions refuse before they read."""

import pytest

import hayloft

PROMPT = "The hay is in the barn, and the barn is on the hill. The hay is in the"


@pytest.fixture(scope="session")
def model(model_path, machine):
    return hayloft.Model(model_path, machine=machine)


def test_what_is_refused_reads_nothing(model):
    """A call that was refused can be made again: the prompt does not stand there twice."""
    session = model.session().append(PROMPT)
    read = session.tokens
    for error, asked in [(hayloft.Error, {"sampling": hayloft.Sampling(temperature=-1)}), (TypeError, {"max_tokens": 2.5}),
                         (hayloft.Error, {"draft": "guess"}), (hayloft.Error, {"draft": "mtp"}), (hayloft.Error, {"draft": "lookup", "draft_max": 0}),
                         (hayloft.Error, {"draft": "lookup", "sampling": hayloft.Sampling(top_p=2)})]:
        with pytest.raises(error):
            session.generate(PROMPT, **{"max_tokens": 4, **asked})
        assert session.tokens == read, asked
    session.attn = "sparq:r=16:k=32"
    with pytest.raises(hayloft.Error, match="set attn to 'dense'"):
        session.generate(PROMPT, 4, draft="lookup")
    assert session.tokens == read


def test_nothing_is_no_model_and_no_machine(model):
    core = hayloft._core
    for make in (lambda: core.OpenSession(None, core.SessionOptions()), lambda: core.TextStream(None, 1),
                 lambda: core.OpenSession.open(None, b"x.hay", core.SessionOptions()),
                 lambda: core.OpenModel(None, str(model.path).encode(), "stored", "auto", 0, False),
                 lambda: core.OpenCache(None, 4, 2, 16, [0], "dense", 4096, "f16", "f16", 0),
                 lambda: core.OpenCache.open(None, b"x.hay", 4, [0], "dense")):
        with pytest.raises(TypeError):
            make()
