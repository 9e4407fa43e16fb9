"""Models and sessions."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike

import numpy as np

from . import _core
from ._arrays import token_ids
from ._audit import Audit
from ._counters import Counters
from ._machine import default_machine
from ._paths import path_bytes


@dataclass
class Sampling:
    """How a token is drawn from its logits: temperature (0 takes the largest), then top_k (0 off), top_p (1 off) and min_p
    (0 off), each on what the one before left. The same seed and logits give the same tokens."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 1


class Model:
    """A model: a folder in Hugging Face's form, or a GGUF file.

    path: of the folder or file.
    weights: "stored", as the checkpoint has them; "f16"; or packed to 8 or 4 bits, "q8", "q4".
    experts: of mixtures on a device with memory of its own: "device"; "near", the processor's; or "auto".
    positions: tokens that contexts will have, which a RoPE that depends on it (dynamic, longrope) is made for; 0: as many as
        the model was made for.
    machine: what computes; default_machine() where none is given.
    head: with the model's head that predicts further tokens, for generate(draft="mtp").
    Raises Error in one line. Sessions keep their model alive.
    """

    def __init__(self, path: str | PathLike, *, weights: str = "stored", experts: str = "auto",
                 positions: int = 0, machine: _core.Machine | None = None, head: bool = False):
        self._open = _core.OpenModel(machine or default_machine(), path_bytes(path), weights, experts, positions, head)

    @property
    def path(self) -> str:
        return self._open.path

    @property
    def config(self) -> dict:
        """Architecture, sizes, `sliding_window` (of each layer: 0 attends to everything, unless it is one of `recurrent`), `eos_tokens`."""
        return self._open.config

    @property
    def notes(self) -> list[str]:
        """What a user should know of the checkpoint, a line each."""
        return self._open.notes

    def encode(self, text: str, *, continued: bool = False) -> list[int]:
        """Token ids of a text: as a prompt, with what the tokenizer puts before one; or, continued, as what follows other
        tokens."""
        if not isinstance(text, str):
            raise TypeError(f"a text is a str, not {type(text).__name__}")
        return self._open.encode_continuation(text) if continued else self._open.encode_prompt(text)

    def decode(self, tokens: Iterable[int], *, special: bool = False, continued: bool = False) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD. Raises Error on an id outside the model's vocabulary."""
        return self._open.decode(token_ids(tokens), special, continued).decode("utf-8", errors="replace")

    def chat(self, messages: str | list[str | dict], *, tools: list[dict] | None = None, add_generation_prompt: bool = True,
             **variables) -> str:
        """The prompt of a conversation by the model's chat template.

        messages: texts of the user, or {"role": ..., "content": ...} as others have them, with tool_calls, tool_call_id,
            name, reasoning_content and whatever else the template reads. Keys keep their order.
        tools: JSON schemas, as transformers and OpenAI have them. Raises Error where the template takes no notice of tools.
        variables: others that the template reads, such as documents and enable_thinking.
        """
        if isinstance(messages, str):
            messages = [messages]
        whole = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
        if tools is not None:
            variables["tools"] = tools
        return self._open.chat_prompt(json.dumps(whole), json.dumps(variables), bool(tools), add_generation_prompt)

    def session(self, **options) -> Session:
        """Session(self, **options)."""
        return Session(self, **options)

    def open(self, context: str | PathLike, **options) -> Session:
        """Session.open(self, context, **options)."""
        return Session.open(self, context, **options)


class Session:
    """One sequence that is read and generated.

    attn: how decoded tokens attend, "sparq:r=16:k=128", or "auto", by whichever method the machine's profile says is fastest at
        each length; exactly by default.
    prefill: how prompts attend: "exact", "window:window=4096:sinks=4", "topk:k=1024:window=4096",
        "sparse:mass=0.98", "sparse:fidelity=0.97" (measured) or "sparse:density=0.05".
    chunk_tokens: of a prompt that are read at a time.
    block_tokens, columns, rows: of the store; columns names a format as --columns does ("f16"), rows as --rows does ("f16").

    One thread at a time may use a session; forks may be used by others. Computing releases the interpreter's lock.
    """

    drafts: dict[str, int] | None = None
    """What the newest generate(draft=...) has drafted: passes, tokens, drafted and accepted tokens, bytes over the link."""

    def __init__(self, model: Model, *, attn: str = "dense", prefill: str = "exact", chunk_tokens: int = 2048,
                 block_tokens: int = 4096, columns: str = "f16", rows: str = "f16"):
        self.model = model
        self._session = _core.OpenSession(model._open, _options(attn, prefill, chunk_tokens, block_tokens, columns, rows))

    @classmethod
    def open(cls, model: Model, context: str | PathLike, *, attn: str = "dense", prefill: str = "exact") -> Session:
        """The session at the end of a saved context (.hay). It is read from its file in place, and goes on in the way it was
        begun; what is appended attends by `prefill`. Raises Error when it belongs to another model."""
        options = _options(attn, prefill, 2048, 4096, "f16", "f16")
        return cls._of(model, _core.OpenSession.open(model._open, path_bytes(context), options))

    @classmethod
    def _of(cls, model, session):
        self = cls.__new__(cls)
        self.model = model
        self._session = session
        return self

    def __len__(self) -> int:
        """Tokens that have K and V."""
        return self._session.length

    @property
    def tokens(self) -> list[int]:
        """Ids of all tokens, a list."""
        return self._session.tokens

    @property
    def attn(self) -> str:
        """The method of decoded tokens. It can be set."""
        return self._session.attn

    @attn.setter
    def attn(self, method: str) -> None:
        self._session.set_method(method)

    @property
    def counters(self) -> Counters:
        """Counters of the tokens decoded in this session."""
        return Counters(**self._session.counters)

    @property
    def steps(self) -> int:
        """Tokens decoded in this session."""
        return self._session.steps

    @property
    def attended_share(self) -> float:
        """Of the positions of the context, how many those tokens attended to: 1 is all."""
        return self._session.attended_share

    @property
    def attention(self) -> str:
        """Whether those tokens attended to everything: "exact", or "approximate: ..." with how much, by which methods, and in
        how many bits keys and values were kept, if in fewer than 16."""
        return self._session.attention

    def audit(self, rate: float = 0.0, *, seed: int = 1) -> Audit:
        """From now on samples of the decoded tokens are held against exact attention: `with session.audit() as audit:`.

        rate: the share of tokens x layers that is sampled, whatever that costs; 0: one of a hundred, and no more than take 2% of
            the decoding time. seed decides which.
        """
        return Audit(self._session.audit(rate, seed))

    def append(self, prompt: str | Iterable[int], progress: Callable[[int, int], None] | None = None) -> Session:
        """Reads tokens, or a text: the first one as a prompt, later ones as what follows. No logits come of it.
        progress(done, total) is called after each chunk; what it raises ends the reading, the chunks so far stay."""
        self._session.append(self._ids(prompt), progress)
        return self

    def logits(self, token: int) -> np.ndarray:
        """Decodes one token by the method and returns the logits of what follows, f32 [vocab]."""
        return self._session.step(token)

    def score(self, tokens: str | Iterable[int]) -> np.ndarray:
        """Adds tokens, attending exactly, and returns the logits of what follows each, f32 [T, vocab]. Ctrl-C ends it; the
        chunks so far stay, as append() has it. Raises MemoryError, and adds nothing, where the logits have no room."""
        return self._session.score(self._ids(tokens))

    def stream(self, prompt: str | Iterable[int], max_tokens: int = 128, *, sampling: Sampling | None = None,
               stop_at_end: bool = True) -> Iterator[int]:
        """Generates, and yields each token as it is drawn. The last token of the prompt is decoded by the method; the one
        before it and all others are read. What was yielded last is not in the session yet: to go on from it, begin what
        follows with it. Raises Error where the session has gone on otherwise before the next token is asked for.

        prompt: a text or ids, one at least.
        max_tokens: 1 or more.
        stop_at_end: stops behind a token that ends a text or a turn, which is yielded as well.
        """
        sampler = _sampler(sampling)  # before anything is read, as it may be refused
        ids, ends = self._begin(prompt, max_tokens, stop_at_end)
        token = ids[-1]
        length = len(self)
        for _ in range(max_tokens):
            if len(self) != length:  # the token would stand behind what it does not follow
                raise _core.Error(f"the session had {length} tokens when the stream paused and has {len(self)} now: "
                                  "end a stream before anything else is read, or fork the session")
            token = self._session.next(token, sampler)
            length = len(self)
            yield token
            if token in ends:
                return

    def generate(self, prompt: str | Iterable[int], max_tokens: int = 128, *, sampling: Sampling | None = None,
                 stop_at_end: bool = True, draft: str | None = None, draft_max: int = 24) -> str:
        """The text that stream() makes, without the token that ends it. As there, the token drawn last, be it that one or
        the last of the text, is not in the session.

        draft: "lookup", "self:sparq:r=8:k=256", "mtp" or "lookup,self", as `--draft` of the program. What comes next is drafted,
            and one pass of exact attention verifies all of the draft: the same text, sooner where drafts are accepted. For
            attn "dense". What was drafted is then in `drafts`.
        draft_max: tokens drafted for a pass at most, 1 to 63.
        """
        if draft is None:
            return "".join(self.stream_text(prompt, max_tokens, sampling=sampling, stop_at_end=stop_at_end))
        sampler = _sampler(sampling)
        self._session.draft(0, sampler, 0, [], draft, draft_max)  # which draws nothing, and refuses before anything is read
        ids, ends = self._begin(prompt, max_tokens, stop_at_end)
        drawn, self.drafts = self._session.draft(ids[-1], sampler, min(max_tokens, 2**31 - 1), sorted(ends), draft, draft_max)
        text = _core.TextStream(self.model._open, ids[-1])
        return "".join([*map(text.push, drawn), text.finish()])

    def stream_text(self, prompt: str | Iterable[int], max_tokens: int = 128, *, sampling: Sampling | None = None,
                    stop_at_end: bool = True) -> Iterator[str]:
        """The same in pieces as they come; a character that comes in several is held back until it is whole."""
        ids = self._ids(prompt)
        if not ids:
            raise _core.Error("the prompt is empty: there is nothing to go on from")
        text = _core.TextStream(self.model._open, ids[-1])
        for token in self.stream(ids, max_tokens, sampling=sampling, stop_at_end=stop_at_end):
            piece = text.push(token)
            if piece:
                yield piece
        rest = text.finish()
        if rest:
            yield rest

    def fork(self) -> Session:
        """Another session that shares the context so far, without copying it."""
        return Session._of(self.model, self._session.fork())

    __copy__ = fork  # an alias would go on with this one

    def save(self, path: str | PathLike, *, overwrite: bool = False) -> None:
        """Saves the context as a file (.hay) that any session of the same model opens, and with it what reading it has left out
        (`prefill`). It appears whole or not at all."""
        self._session.save(path_bytes(path), overwrite)

    def _begin(self, prompt, max_tokens, stop_at_end):
        """Reads all of the prompt but its last token; returns its ids and the tokens that end an answer."""
        if operator.index(max_tokens) < 1:
            raise _core.Error(f"max_tokens {max_tokens}: must be 1 or more; append() reads a prompt and draws nothing")
        ids = self._ids(prompt)
        if not ids:
            raise _core.Error("the prompt is empty: there is nothing to go on from")
        if len(ids) > 1:
            self._session.append(ids[:-1], None)
        return ids, set(self.model.config["eos_tokens"]) | set(self.model._open.end_of_turn) if stop_at_end else set()

    def _ids(self, prompt):
        if isinstance(prompt, str):
            return self.model.encode(prompt, continued=len(self) > 0)
        ids, known = token_ids(prompt), self.model.config["vocab_size"]
        for token in ids:  # all of them before the first is read
            if not 0 <= token < known:
                raise _core.Error(f"token id {token} is outside the model's vocabulary of {known}")
        return ids


def _options(attn, prefill, chunk_tokens, block_tokens, columns, rows):
    options = _core.SessionOptions()
    options.attn, options.prefill, options.chunk_tokens = attn, prefill, chunk_tokens
    options.block_tokens, options.columns, options.rows = block_tokens, columns, rows
    return options


def _sampler(sampling):
    chosen = sampling or Sampling()
    return _core.Sampler(chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p, chosen.seed)
