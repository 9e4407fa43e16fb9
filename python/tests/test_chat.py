"""Conversations by a model's chat template. Expected texts are Jinja's, as transformers runs it."""

import json
import shutil

import pytest
from conftest import NEEDLE_MODEL

import hayloft

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{{ mood }}"
)
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"z": 1, "a": {"y": "ü", "b": None}}}}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    shutil.copytree(NEEDLE_MODEL, path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def test_keys_keep_their_order_and_nothing_is_dropped(folder, machine):
    model = hayloft.Model(folder, machine=machine)
    messages = [
        "Where?",
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "find", "arguments": '{"z":1,"a":2}'}}]},
        {"role": "tool", "content": "here", "tool_call_id": "7"},
    ]
    told = json.dumps(TOOL, ensure_ascii=False)
    expected = f'{told}\n[user]Where?\n[assistant]{{"z": 1, "a": 2}}\n[tool]here7\n[assistant]glad'
    assert model.chat(messages, tools=[TOOL], mood="glad") == expected
    assert model.chat("Hi", add_generation_prompt=False) == "[user]Hi\n"


def test_tools_that_the_template_leaves_out_are_refused(folder, machine):
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(hayloft.Error, match="takes no notice of tools"):
        hayloft.Model(folder, machine=machine).chat("Hi", tools=[TOOL])
