"""Asks for every field that hayloft serve honours, and for those that mean nothing to it, by the openai package.

The names are those of the tables in runtime/serve/openai: a field of a table that has no check here fails.
"""
import json
import pathlib
import re
import urllib.request

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "runtime" / "serve" / "openai"
PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks a word up.", "parameters": {
    "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}}


CITY = {"type": "json_schema", "json_schema": {"name": "city", "schema": {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}


def table(file, name):
    """The names of the fields of a table."""
    text = (SOURCES / file).read_text()
    body = text[text.index(f" {name}[] = {{"):]
    body = body[:body.index("\n};")]
    if "Meaningless" in name:
        return re.findall(r'"(\w+)"', body)
    body = body.replace("{kMessages,", '{"messages",').replace("{kPrompt,", '{"prompt",')
    return re.findall(r'^    \{"(\w+)",', body, re.MULTILINE)


class Asker:
    """Completions and chats of few tokens, greedy unless told otherwise, each held to the package's types."""

    def __init__(self, client, model):
        self.client = client
        self.model = model
        self.base = {chat: self(chat) for chat in (False, True)}

    def __call__(self, chat, **fields):
        body = {"temperature": 0, "max_tokens": 8, **fields}
        model = body.pop("model", self.model)
        if chat:
            messages = body.pop("messages", MESSAGES)
            answer = self.client.chat.completions.create(model=model, messages=messages, extra_body=body)
            ChatCompletion.model_validate(answer.model_dump(), strict=True)
        else:
            prompt = body.pop("prompt", PROMPT)
            answer = self.client.completions.create(model=model, prompt=prompt, extra_body=body)
            Completion.model_validate(answer.model_dump(), strict=True)
        return answer

    def text(self, chat, **fields):
        choice = self(chat, **fields).choices[0]
        return choice.message.content if chat else choice.text

    def tokens(self, text):
        address = str(self.client.base_url).rstrip("/").removesuffix("/v1")
        body = json.dumps({"prompt": text}).encode()
        return json.load(urllib.request.urlopen(urllib.request.Request(address + "/tokenize", body, {"Content-Type": "application/json"})))["tokens"]

    def refuses(self, chat, field=None, **fields):
        """With status 400, naming the field."""
        named = field or next(iter(fields))
        try:
            self(chat, **fields)
        except openai.BadRequestError as error:
            return named in (error.param or "") and named.rpartition(".")[2] in error.message
        return False

    def streams(self, chat, **fields):
        """The text of a stream."""
        create = self.client.chat.completions.create if chat else self.client.completions.create
        prompt = {"messages": MESSAGES} if chat else {"prompt": PROMPT}
        text = ""
        for chunk in create(model=self.model, temperature=0, max_tokens=8, stream=True, **prompt, **fields):
            for choice in chunk.choices:
                text += (choice.delta.content or "") if chat else choice.text
        return text


def first_text(answer, chat):
    return answer.choices[0].message.content if chat else answer.choices[0].text


def common_checks(ask, chat):
    """For each field of both endpoints, whether it does what it is for."""
    base = first_text(ask.base[chat], chat)
    same = lambda **fields: ask.text(chat, **fields) == base
    long = lambda **fields: ask.text(chat, max_tokens=64, ignore_eos=True, **fields)
    chosen = lambda **fields: ask.tokens(ask.text(chat, **fields))
    first, the = ask.tokens(base)[0], ask.tokens(" the")[0]
    drawn = lambda **fields: ask.text(chat, temperature=1.5, **fields)
    return {
        "model": lambda: same(model=ask.model),
        "max_tokens": lambda: ask(chat, max_tokens=2, ignore_eos=True).usage.completion_tokens == 2,
        "n": lambda: len(ask(chat, n=3).choices) == 3 and ask(chat, n=3).usage.prompt_tokens == ask.base[chat].usage.prompt_tokens,
        "seed": lambda: drawn(seed=5) == drawn(seed=5) != drawn(seed=6),
        "temperature": lambda: same(temperature=0) and len({drawn(seed=seed) for seed in range(4)}) > 1,
        "top_p": lambda: drawn(top_p=0) == base,
        "top_k": lambda: drawn(top_k=1) == base and drawn(top_k=-1, seed=5) == drawn(seed=5),
        "min_p": lambda: drawn(min_p=1) == base,
        # Over a long answer, which without them repeats itself.
        "frequency_penalty": lambda: same(frequency_penalty=0) and long(frequency_penalty=2) != long(),
        "presence_penalty": lambda: same(presence_penalty=0) and long(presence_penalty=2) != long(),
        "repetition_penalty": lambda: same(repetition_penalty=1) and long(repetition_penalty=1.5) != long(),
        "repeat_penalty": lambda: same(repeat_penalty=1) and long(repeat_penalty=1.5) != long() and
                                  long(repeat_penalty=1.5, repeat_last_n=-1) == long(repetition_penalty=1.5),
        "repeat_last_n": lambda: long(repeat_penalty=1.5, repeat_last_n=0) == long() and ask.refuses(chat, repeat_last_n=3),
        "no_repeat_ngram_size": lambda: same(no_repeat_ngram_size=0) and long(no_repeat_ngram_size=2) != long(),
        "suppress_tokens": lambda: first not in chosen(suppress_tokens=[first]),
        "logit_bias": lambda: first not in chosen(logit_bias={str(first): -100}) and
                              set(chosen(logit_bias={str(the): 100}, ignore_eos=True)) == {the},
        "grammar": lambda: ask.text(chat, grammar='root ::= "Paris" | "Rome"') in ("Paris", "Rome") and ask.refuses(chat, grammar="root ::= other"),
        "use_beam_search": lambda: same(use_beam_search=False) and ask.refuses(chat, use_beam_search=True),
        "stop": lambda: "Paris" not in ask.text(chat, stop=["Paris"]) and
                        ask(chat, stop="<|im_end|>", ignore_eos=True, max_tokens=200).choices[0].finish_reason == "stop",
        "stop_token_ids": lambda: ask(chat, stop_token_ids=[2], ignore_eos=True, max_tokens=200).choices[0].finish_reason == "stop",
        "min_tokens": lambda: same(min_tokens=0) and ask.refuses(chat, min_tokens=-1) and
                              ask(chat, min_tokens=40, max_tokens=50).usage.completion_tokens >= 40 and
                              "Paris" in ask.text(chat, min_tokens=8, max_tokens=20, stop="Paris"),
        "ignore_eos": lambda: ask(chat, ignore_eos=True, max_tokens=64).usage.completion_tokens == 64,
        "stream": lambda: ask.streams(chat) == base,
        "stream_options": lambda: ask.streams(chat, stream_options={"include_usage": True, "include_obfuscation": False}) == base and
                                  ask.refuses(chat, "stream_options", stream_options={"include_usage": True}),
        "skip_special_tokens": lambda: same(skip_special_tokens=True) and ask.refuses(chat, skip_special_tokens=False),
        "include_stop_str_in_output": lambda: same(include_stop_str_in_output=False) and ask.refuses(chat, include_stop_str_in_output=True),
        "hayloft": lambda: ask(chat, hayloft={"audit": True, "quotes": 2}).choices[0].hayloft["steps"] > 0 and
                           ask.refuses(chat, "hayloft.other", hayloft={"other": 1}),
    }


def completion_checks(ask):
    base = ask.base[False].choices[0]
    return {
        "prompt": lambda: [len(ask(False, prompt=[PROMPT, PROMPT]).choices), len(ask(False, prompt=[5, 6]).choices)] == [2, 1],
        "echo": lambda: ask.text(False, echo=True) == PROMPT + base.text and ask.streams(False, echo=True) == PROMPT + base.text and
                        ask.text(False, echo=True, max_tokens=0) == PROMPT,
        "logprobs": lambda: all(len(top) == 20 for top in ask(False, logprobs=20).choices[0].logprobs.top_logprobs),
        "best_of": lambda: len(ask(False, n=2, best_of=2).choices) == 2 and ask.refuses(False, best_of=3),
        "suffix": lambda: ask.text(False, suffix="") == base.text and ask.refuses(False, suffix="b"),
    }


def chat_checks(ask):
    base = ask.base[True].choices[0].message.content
    same = lambda **fields: ask.text(True, **fields) == base
    longer = MESSAGES + [{"role": "assistant", "content": "Paris", "refusal": None, "annotations": []},
                         {"role": "user", "content": [{"type": "text", "text": "And of "}, {"type": "input_text", "text": "Italy?"}]}]
    # SmolLM2's template takes no notice of any of these: what reaches nobody is refused.
    unnoticed = lambda **fields: ask.refuses(True, **fields)
    return {
        "messages": lambda: ask(True, messages=longer).usage.prompt_tokens > ask.base[True].usage.prompt_tokens,
        "max_completion_tokens": lambda: ask(True, max_completion_tokens=2, ignore_eos=True).usage.completion_tokens == 2,
        "logprobs": lambda: len(ask(True, logprobs=True).choices[0].logprobs.content) > 0,
        "top_logprobs": lambda: all(len(token.top_logprobs) == 20 for token in
                                    ask(True, logprobs=True, top_logprobs=20).choices[0].logprobs.content) and
                                ask.refuses(True, top_logprobs=3),
        "tools": lambda: unnoticed(tools=[TOOL]),
        "tool_choice": lambda: same(tools=[TOOL], tool_choice="none") and ask.refuses(True, tool_choice="required"),
        "parallel_tool_calls": lambda: same(parallel_tool_calls=True) and same(parallel_tool_calls=False),
        "documents": lambda: unnoticed(documents=[{"title": "t", "text": "x"}]),
        "reasoning_effort": lambda: unnoticed(reasoning_effort="low"),
        "chat_template_kwargs": lambda: same(chat_template_kwargs={}) and
                                        ask.refuses(True, "enable_thinking", chat_template_kwargs={"enable_thinking": False}),
        "add_generation_prompt": lambda: ask(True, add_generation_prompt=False).usage.prompt_tokens < ask.base[True].usage.prompt_tokens,
        "continue_final_message": lambda: same(continue_final_message=False) and ask.refuses(True, continue_final_message=True),
        "response_format": lambda: same(response_format={"type": "text"}) and
                                   json.loads(ask.text(True, response_format=CITY, max_tokens=100))["city"] in ("Paris", "Rome") and
                                   ask.refuses(True, "response_format.type", response_format={"type": "json"}),
        "modalities": lambda: same(modalities=["text"]) and ask.refuses(True, modalities=["text", "audio"]),
        "functions": lambda: same(functions=[]) and ask.refuses(True, functions=[TOOL["function"]]),
        "function_call": lambda: same(function_call="auto") and ask.refuses(True, function_call={"name": "f"}),
    }


MEANINGLESS = {"user": "me", "metadata": {"a": "b"}, "store": True, "safety_identifier": "x", "prompt_cache_key": "k",
               "prompt_cache_retention": "24h", "service_tier": "auto", "prediction": {"type": "content", "content": "a"},
               "cache_prompt": False, "id_slot": 0}

# Of other servers, and of nobody: each would change the answer.
ELSEWHERE = {"structured_outputs": {}, "guided_json": {}, "guided_regex": "a", "json_schema": {},
             "allowed_token_ids": [5], "bad_words": ["a"], "truncate_prompt_tokens": 4, "length_penalty": 2, "prompt_logprobs": 1,
             "mirostat": 2, "typical_p": 0.5, "n_predict": 5, "lora": [], "no_such_field": False}


def check_fields(check, client, model):
    """Calls check(name, holds, seen) for each field."""
    ask = Asker(client, model)
    common = table("common_fields.cpp", "kCommonFields")
    tables = {False: (common + table("completion.cpp", "kCompletionFields"), completion_checks(ask)),
              True: (common + table("chat.cpp", "kChatFields"), chat_checks(ask))}
    meaningless = table("common_fields.cpp", "kMeaninglessFields")
    check("every field that means nothing is checked", sorted(meaningless) == sorted(MEANINGLESS), meaningless)
    for chat, (names, own) in tables.items():
        endpoint = "chat" if chat else "completions"
        checks = {**common_checks(ask, chat), **own}
        check(f"{endpoint}: every field of the table is checked", sorted(names) == sorted(checks), sorted(set(names) ^ set(checks)))
        for name, holds in checks.items():
            try:
                check(f"{endpoint}: {name}", holds())
            except openai.APIStatusError as error:
                check(f"{endpoint}: {name}", False, error)
        base = first_text(ask.base[chat], chat)
        for name, value in MEANINGLESS.items():
            check(f"{endpoint}: {name} changes nothing", ask.text(chat, **{name: value}) == base)
        for name, value in ELSEWHERE.items():
            check(f"{endpoint}: {name} is refused by name", ask.refuses(chat, **{name: value}))
    check("completions: fields of chats are refused by name",
          all(ask.refuses(False, **{name: 1}) for name in chat_checks(ask) if name != "logprobs"))
    check("chat: fields of completions are refused by name",
          all(ask.refuses(True, **{name: 1}) for name in ("prompt", "echo", "suffix", "best_of")))
