#!/usr/bin/env python3
"""Makes tests/golden/templates.json: small Jinja templates, and what Jinja makes of them as transformers runs it.

Each case has the template, its variables and either the text ("text") or nothing, where Jinja refuses it. Conversations
are those that clients send, by the rule that scripts/check-templates states. Needs the
Python package jinja2, 3.1.6 or later; running it twice gives the same bytes.
"""

import importlib.machinery
import importlib.util
import json
import pathlib

import jinja2

SCRIPTS = pathlib.Path(__file__).resolve().parent
OUT = SCRIPTS.parent / "tests" / "golden" / "templates.json"

loader = importlib.machinery.SourceFileLoader("check_templates", str(SCRIPTS / "check-templates"))
check_templates = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_templates", loader))
loader.exec_module(check_templates)

VARIABLES = {
    "n": 7,
    "x": 2.5,
    "none": None,
    "yes": True,
    "text": "  Grüße, Welt!  ",
    "word": "needle",
    "lines": "one\n\n two\nthree\n",
    "empty": "",
    "html": "<a href=\"x\">&'</a>",
    "list": [3, 1, 2, 1],
    "words": ["b", "A", "c", "B"],
    "dict": {"b": 1, "a": [1, {"k": None}], "items": "own", "C": "é\"'\\\n\u007f\u200b"},
    "people": [
        {"name": "Ann", "age": 31, "at": {"town": "Ulm"}},
        {"name": "bob", "age": 25, "at": {"town": "Bonn"}},
        {"name": "Cy", "age": 31},
    ],
}

TEMPLATES = [
    # White space around tags.
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\nc\n\n",
    "a\n  {%+ if yes +%}\n  b\n  {%+ endif %}\nc",
    "  {# note #}\nx {# note -#}  \n y {#- note #}z",
    "{{ n }}\n {{- n -}} \n{{ n }}\n",
    "  {{ n }}\n\t{% set a = 1 %}\n{{ a }}",
    "a {% if yes %} b {% endif %} c",
    "{% raw %}\n {{ n }} {% x %}\n{% endraw %}\n!",
    "a {%- raw -%} {{ n }} {%- endraw -%} b",
    "one\r\ntwo\rthree\n\n",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': 1}}}",
    "{%if yes%}{{n}}{%endif%}{{'}}'}}{{\"%}\"}}",
    # Literals and their printing.
    "{{ [1, 2.0, 1e3, 1e16, 1e-5, 0.1, true, none, 'a\\'b', \"it's\"] }}",
    "{{ (1,) }}{{ () }}{{ (1, 'b') }}{{ {'a': 1, 2: [none]} }}{{ 1, 2 }}",
    "{{ 'a\\n\\t\\x41\\u00e9\\\\d\\q' }}{{ 'con' 'cat' }}",
    "{{ 1_000 }} {{ 1.5e2 }} {{ -3 }} {{ +3 }} {{ true }}{{ None }}",
    "{{ dict }}",
    "{{ nothing }}|{{ none }}|{{ dict.nothing }}|{{ [] }}",
    # Arithmetic and comparison.
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }}",
    "{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ 'a' ~ 1 ~ none ~ 2.0 }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ 2 * [0] }}",
    "{{ -n|abs }} {{ n - -1 }} {{ 2 ** 3 ** 2 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 == true }} {{ 1 != '1' }}",
    "{{ 'eed' in word }} {{ 'x' not in word }} {{ 2 in list }} {{ 'a' in dict }} {{ not 1 in [1] }}",
    "{{ n and 'yes' or 'no' }} {{ empty or none or 0 }} {{ not empty }} {{ 1 if empty else 2 }} {{ 1 if empty }}",
    "{{ 'a' if n == 7 else 'b' if n == 8 else 'c' }} {{ nothing == other }} {{ none == false }}",
    "{{ 'a' + 1 }}",
    "{{ none + 1 }}",
    "{{ nothing + 1 }}",
    "{{ 1 < 'a' }}",
    "{{ 1 / 0 }}",
    "{{ '%s has %d of %r%%' % ('a', 3, 'b') }} {{ '%s' % n }} {{ '%s-%s'|format(1, 2) }}",
    # Items, attributes, slices.
    "{{ dict.b }} {{ dict['b'] }} {{ dict.a[1].k }} {{ dict['items'] }} {{ list[0] }}{{ list[-1] }}{{ list[9] }}",
    "{{ dict.items is defined }} {{ dict.get('z') }} {{ dict.get('z', 5) }} {{ none.x }}|{{ n.x }}|{{ n['x'] }}|",
    "{{ list[1:] }}{{ list[:-1] }}{{ list[::2] }}{{ list[::-1] }}{{ word[1:3] }}{{ word[::-1] }}{{ text[2:7] }}",
    "{{ list[5:] }}{{ list[-2:] }}{{ list[-9:2] }}{{ word[10:] }}|{{ word[-1] }}{{ text[4] }}{{ list[3:0:-2] }}",
    "{{ nothing.x }}",
    "{{ dict.nothing.x }}",
    "{{ nothing[0] }}",
    "{{ people[0].at.town }}{{ people.0.name }}",
    # Methods.
    "{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abca'.rstrip('ca') }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a b c'.split(' ', 1) }}{{ 'a b c'.rsplit(' ', 1) }}",
    "{{ ' a  b\t '.split(none, 1) }}{{ ' a  b '.rsplit(none, 1) }}{{ 'a  '.split(none, 1) }}{{ ' a '.split(none, 0) }}",
    "{{ 'a-b'.split('-')[-1] }} {{ 'k: v: w'.partition(': ') }} {{ lines.splitlines() }} {{ 'x'.join(['a', 'b']) }}",
    "{{ word.startswith('nee') }} {{ word.endswith(('x', 'dle')) }} {{ word.upper() }} {{ 'ÄÖ'.lower() }}",
    "{{ word.replace('e', 'E') }} {{ word.replace('e', 'E', 1) }} {{ word.find('d') }} {{ word.find('x') }}",
    "{{ word.count('e') }} {{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }} {{ '42'.zfill(5) }} {{ '12'.isdigit() }}",
    "{{ 'a{}b{}'.format(1, 'x') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{k}{{}}'.format(k=3) }} {{ 'a'.ljust(3) }}|",
    "{{ word.removeprefix('nee') }} {{ word.removesuffix('dle') }} {{ word.index('d') }} {{ [1, 2, 1].count(1) }}",
    "{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}{{ dict.keys()|list }}{{ dict.values()|list|length }}",
    "{{ list.append(1) }}",
    "{{ dict.update({}) }}",
    "{{ word.nothing() }}",
    "{{ word.__class__ }}",
    # Filters.
    "{{ text|trim }}|{{ text|length }}|{{ word|upper }}|{{ 'aB'|lower }}|{{ word|capitalize }}|{{ 'a b-c'|title }}",
    "{{ nothing|default('d') }} {{ empty|default('d') }}|{{ empty|default('d', true) }} {{ none|default('d') }} {{ none|d('e', boolean=true) }}",
    "{{ list|join(', ') }} {{ people|join('/', attribute='name') }} {{ list|join }} {{ word|join('.') }}",
    "{{ list|first }}{{ list|last }}{{ []|first }}{{ list|length }}{{ dict|count }}{{ nothing|length }}",
    "{{ list|sort }}{{ words|sort }}{{ words|sort(case_sensitive=true) }}{{ list|sort(reverse=true) }}",
    "{{ people|sort(attribute='age')|map(attribute='name')|list }} {{ people|sort(attribute='age,name', reverse=true)|map(attribute='name')|join(',') }}",
    "{{ list|unique|list }}{{ words|unique|list }}{{ list|min }}{{ list|max }}{{ list|sum }}{{ people|sum(attribute='age') }}",
    "{{ list|reverse|list }}{{ word|reverse }}{{ word|list }}{{ [1, 2, 3]|batch(2)|list }}{{ [1, 2, 3]|batch(2, 0)|list }}",
    "{{ people|selectattr('age', 'equalto', 31)|map(attribute='name')|list }}{{ people|rejectattr('at')|list }}",
    "{{ people|selectattr('at', 'defined')|list|length }}{{ list|select('odd')|list }}{{ list|reject('greaterthan', 1)|list }}{{ [0, 1, '']|select|list }}",
    "{{ words|map('lower')|join }}{{ people|map(attribute='at.town', default='?')|list }}{{ ['a-b']|map('replace', '-', '+')|list }}",
    "{{ dict|dictsort }}{{ {'b': 1, 'a': 2}|dictsort(by='value') }}{{ {'b': 1, 'B': 0}|dictsort(true) }}",
    "{{ dict|items|list|length }}{{ nothing|items|list }}{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{% endfor %}",
    "{{ '3'|int }} {{ '3.7'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.9|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ none|int }}",
    "{{ 2.567|round(2) }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.1|round(method='ceil') }} {{ 7|round }} {{ -3|abs }}",
    "{{ lines|indent }}|{{ lines|indent(2, true) }}|{{ lines|indent(width=1, blank=true) }}|{{ 'a'|indent('> ', first=true) }}",
    "{{ word|replace('e', 'E') }} {{ word|replace('e', 'E', 2) }} {{ 12|string + '!' }} {{ word|center(10) }}| {{ 'a b c'|wordcount }}",
    "{{ html|e }} {{ html|escape|e }} {{ html|safe }} {{ html|safe ~ '<' }} {{ '<b>'|safe + '<c>' }} {{ '<' + html|safe }}",
    "{{ text|nothing }}",
    "{{ 5|length }}",
    "{{ people|map(attribute='name')|length }}",
    "{{ 'always' if list|select('greaterthan', 9) }}{% set g = list|map('string') %}{{ g|join }}{{ g|join }}",
    "{{ none|map(attribute='x')|list }}{{ none|select|list }}{{ 0|rejectattr('x')|list }}",
    "{{ none|join }}",
    # JSON.
    "{{ dict|tojson }}",
    "{{ dict|tojson(indent=2) }}",
    "{{ [1, 'é', none, true, 1.0, {}, []]|tojson(ensure_ascii=true) }}{{ '😀'|tojson(true) }}{{ [[], {}]|tojson(indent=4) }}",
    "{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}{{ {1: 2, none: 3, true: 4}|tojson }}",
    "{{ html|tojson }}{{ html|tojson|safe }}{{ 1e400|tojson }}{{ (1, 2)|tojson }}",
    "{{ nothing|tojson }}",
    # Tests.
    "{{ n is defined }}{{ nothing is defined }}{{ nothing is not defined }}{{ none is none }}{{ n is number }}{{ x is float }}",
    "{{ word is string }}{{ dict is mapping }}{{ list is sequence }}{{ dict is sequence }}{{ word is iterable }}{{ n is iterable }}{{ none is iterable }}",
    "{{ yes is boolean }}{{ yes is true }}{{ 1 is true }}{{ n is odd }}{{ n is even }}{{ n is divisibleby 7 }}{{ n is divisibleby(2) }}",
    "{{ n is eq 7 }}{{ n is gt(3) }}{{ n is le 3 }}{{ 1 is in [1, 2] }}{{ 'a' is lower }}{{ 'a' is upper }}{{ nothing is undefined }}",
    "{{ not n is odd }}{{ n is not odd or yes }}{{ nothing is iterable }}{{ n is integer }}{{ true is integer }}{{ none is sameas none }}",
    "{{ n is nothing }}",
    # Statements.
    "{% if n > 9 %}a{% elif n > 5 %}b{% elif yes %}c{% else %}d{% endif %}",
    "{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }} {% endfor %}",
    "{% for i in list %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}{% for i in list if i > 1 %}{{ i }}/{{ loop.length }} {% else %}no{% endfor %}",
    "{% for i in list %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "{% for i in [1, 2] %}{% for j in 'ab' %}{{ i }}{{ j }}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for k in dict %}{{ k }}{% endfor %}{% for c in 'aé😀' %}[{{ c }}]{% endfor %}{% for i in nothing %}x{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for i in range(3) %}{{ i }}{% endfor %}{{ range(5, 0, -2)|list }}",
    "{% for i in 5 %}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}",
    "{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}",
    "{% set ns = namespace(a=1, b=[]) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (d, e) = 'xy' %}{{ d }}{{ e }}",
    "{% set t %} in {{ n }} {% set inner = 1 %}{% endset %}[{{ t }}]{{ inner }}{% set u | upper | trim %} abc {% endset %}[{{ u }}]",
    "{% if yes %}{% set seen = 1 %}{% endif %}{{ seen }}{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 5 %}{% endwith %}{{ a }}{{ c }}",
    "{% filter upper %}abc {{ word }}{% endfilter %}{% generation %}g{{ n }}{% endgeneration %}",
    "{% set n.x = 1 %}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    # Macros.
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(b=1, a=9) }} {{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro m(a) %}{% if a > 0 %}{{ a }}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(5)|trim }}",
    "{% macro m() %}{{ late }}{% endmacro %}{% set late = 'set later' %}{{ m() }}",
    "{% macro wrap(tag) %}<{{ tag }}>{{ caller('in') }}</{{ tag }}>{% endmacro %}{% call(x) wrap('b') %}{{ x }}{{ n }}{% endcall %}",
    "{% macro m() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}{% for i in [1] %}{% macro k() %}{{ i }}{% endmacro %}{{ k() }}{% endfor %}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "{{ raise_exception('no ' ~ word) }}",
    "{{ raise_exception is defined }}{{ strftime_now('%Y') is string }}{{ nothing() }}",
    # Texts that repeat themselves.
    "{{ 'aaaaa'.split('aa') }}{{ 'aaaaa'.rsplit('aa') }}{{ 'aaaaa'.rsplit('aa', 1) }}{{ 'aaaaa'.count('aa') }}",
    "{{ 'abababa'.rfind('aba') }}{{ 'abababa'.find('bab') }}{{ 'abababa'.rfind('x') }}{{ 'aaaaa'|replace('aa', 'b') }}",
    "{{ 'éaéaé'.rsplit('éa') }}{{ 'éaéaé'.rfind('é') }}{{ ('é' * 3 ~ 'b') in 'é' * 9 ~ 'b' }}{{ 'x,y,z'.rsplit(',', 1) }}",
    "{{ text[3:6] }}{{ text[-4:-1] }}{{ text[::3] }}{{ text[9:2] }}{{ text[2:99] }}{{ text[-1] }}{{ text[-15] }}",
    "{{ 'abcabc'.strip('bca') }}|{{ 'éxé'.strip('é') }}|{{ 'abcxcba'.rstrip('cab') }}|{{ 'abc'|trim('ca') }}",
    "{{ {'a': 1, 'b': [2]} == {'b': [2], 'a': 1} }}{{ {'a': 1} == {'a': 2} }}{{ {1: 2, 'c': 3} == {'c': 3, 1: 2} }}",
    "{{ [1, [2, none]] < [1, [2, none], 3] }}{{ [1, 'a'] == [1, 'a'] }}{{ [[1], 2] > [[1], 1] }}",
    "{{ [none, 1] < [none, 2] }}{{ [[none, 1]]|sort }}{{ {'n': [1, {'m': (1,)}]} }}",
    # Sources that are no templates.
    "{% if yes %}",
    "{{ n",
    "{{ n }",
    "{% endif %}",
    "{% for i in list %}{% endif %}",
    "{{ }}",
    "{{ 'a }}",
    "{# open",
    "{{ (n] }}",
    "{% nothing %}",
    "{{ n ! }}",
    "{{ m(a=1, 2) }}",
    "{% set true = 1 %}",
    "{{ a b }}",
]

# Ways of writing a conversation, each applied to the conversations of scripts/check-templates that a client sends.
CHAT_TEMPLATES = [
    # Arguments as JSON, tools as they came.
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}",
    # Arguments one by one.
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% for c in m['tool_calls'] %}"
    "{% for k, v in c['function']['arguments'].items() %}<{{ k }}={{ v if v is string else v | tojson }}>{% endfor %}"
    "{% endfor %}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\n{% endfor %}",
    # Arguments as the text that they are.
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% for c in m.tool_calls %}"
    "{{ '<' + c.function.name + ' ' + c.function.arguments + '>' }}{% endfor %}\n{% endfor %}",
    # Contents that are texts.
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content.split('</think>')[-1] + '\n' }}{% endfor %}",
    # The order of keys, at all depths, and methods that are names.
    "{% for t in tools or [] %}{% for k in t.function.parameters.properties %}{{ k }}:"
    "{{ t.function.parameters.properties[k] | tojson(indent=2) }}{% endfor %}{% endfor %}{{ documents }}{{ zeta }}"
    "{% for m in messages %}{{ m.metadata | tojson if m.metadata is defined }}{{ m.get('items') }}{{ m.name }}{% endfor %}",
]


def conversations():
    """What Jinja makes of conversations that a client sends, and the conversations by name."""
    cases = []
    for template in CHAT_TEMPLATES:
        compiled = check_templates.environment().from_string(template)
        for name, conversation in check_templates.CLIENTS.items():
            result = check_templates.by_forms(compiled, conversation, True)
            cases.append({"template": template, "sent": name, **({"text": result["text"]} if "text" in result else {})})
    sent = {}
    for name, conversation in check_templates.CLIENTS.items():
        variables = {key: value for key, value in conversation.items() if key != "messages"}
        sent[name] = {"messages": json.dumps(conversation["messages"]), "variables": json.dumps(variables)}
    return sent, cases


def main():
    cases = []
    for template in TEMPLATES:
        result = check_templates.by_jinja(template, [VARIABLES])[0]
        cases.append({"template": template, **({"text": result["text"]} if "text" in result else {})})
    refused = sum("text" not in case for case in cases)
    sent, chats = conversations()
    members = {
        "jinja2": json.dumps(jinja2.__version__),
        "variables": json.dumps(VARIABLES),
        "special": json.dumps(check_templates.SPECIAL),
        "sent": "{\n" + ",\n".join(f"{json.dumps(name)}:{json.dumps(each)}" for name, each in sent.items()) + "\n}",
        "cases": "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]",
        "conversations": "[\n" + ",\n".join(json.dumps(case) for case in chats) + "\n]",
    }
    text = ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items())
    OUT.write_text("{" + text + "}\n", encoding="utf-8")
    print(f"{len(cases)} templates, {refused} of them refused; {len(chats)} conversations")


if __name__ == "__main__":
    main()
