"""A chat template in the manner of Qwen3: it drops the thinking of earlier rounds, and writes tools."""

from __future__ import annotations

TEMPLATE = """
{%- if tools %}<|system|>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|end|>
{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
    {%- set content = m.content %}
    {%- set thinking = m.reasoning_content or '' %}
    {%- if '</think>' in content %}
        {%- set thinking = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|assistant|>\n' }}OPEN
    {%- if loop.index0 > ns.last and (loop.last or thinking) %}
        {{- '<think>\n' + thinking + '\n</think>\n\n' }}
    {%- endif %}
    {{- content }}
    {%- for call in m.tool_calls or [] %}{{ '<call>' + (call.function | tojson) + '</call>' }}{% endfor %}
    {{- '<|end|>' }}CLOSE{{ '\n' }}
{%- else %}
    {{- '<|' + ('user' if m.role == 'tool' else m.role) + '|>\n' + m.content + '<|end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

PLAIN = TEMPLATE.replace("OPEN", "").replace("CLOSE", "")
MARKED = TEMPLATE.replace("OPEN", "{% generation %}").replace("CLOSE", "{% endgeneration %}")

CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
TOOLS = [{"name": "f", "description": "d"}]
TWO_ROUNDS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "", "reasoning_content": "hm 1", "tool_calls": [CALL]},
    {"role": "tool", "content": "9"},
    {"role": "assistant", "content": "nine", "reasoning_content": "hm 2"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "", "reasoning_content": "hm 3", "tool_calls": [CALL]},
    {"role": "tool", "content": "8"},
    {"role": "assistant", "content": "eight", "reasoning_content": "hm 4"},
]
