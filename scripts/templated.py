"""Copies of GGUF models with another chat template."""
import struct

# ChatML with tools as Hermes and Qwen take them.
HERMES = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}You may call these functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is written so:
<tool_call>
{"name": NAME, "arguments": {...}}
</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{% for message in messages %}{% if message.role == 'system' and loop.first %}{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def with_template(model, template, path):
    """Writes the model with the template in place of its own, padded so that what follows is aligned as it was."""
    data = open(model, "rb").read()
    key = b"tokenizer.chat_template" + struct.pack("<I", 8)  # a string
    at = data.index(key) + len(key)
    (size,) = struct.unpack_from("<Q", data, at)
    text = template.encode()
    text += b"{#" + b" " * ((size - len(text) - 4) % 32) + b"#}"
    with open(path, "wb") as file:
        file.write(data[:at] + struct.pack("<Q", len(text)) + text + data[at + 8 + size:])
