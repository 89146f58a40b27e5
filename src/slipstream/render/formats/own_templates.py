"""Chat formats that are short enough to be written as a Jinja template of our own, rendered by `jinja.JinjaFormat`.

Each writes messages as the models' own templates do, and has marks for tools if the models were trained with some. A
model folder with another template of the same name is rendered through its own (family `template`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTemplate:
    source: str
    special_tokens: Mapping[str, str]
    """The variables `bos_token` and `eos_token`, for a tokenizer without them."""


_GEMMA = r"""{{- bos_token }}
{%- set first = namespace(prefix='') %}
{%- for message in messages %}
  {%- if message.role == 'system' %}
    {%- if not loop.first %}{{ raise_exception('a system message can only come first') }}{% endif %}
    {%- set first.prefix = message.content + '\n\n' %}
  {%- elif message.role in ('user', 'assistant') %}
    {{- '<start_of_turn>' + ('user' if message.role == 'user' else 'model') + '\n' + first.prefix }}
    {{- message.content | trim }}
    {{- '<end_of_turn>\n' }}
    {%- set first.prefix = '' %}
  {%- else %}{{ raise_exception('there is no role ' + message.role) }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

_PHI3 = r"""{%- for message in messages %}
  {%- if message.role == 'tool' %}{{ raise_exception('there is no role tool') }}{% endif %}
  {%- if message.role != 'system' or message.content %}
    {{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}
  {%- endif %}
{%- endfor %}
{{- '<|assistant|>\n' if add_generation_prompt else eos_token }}"""

_PHI4_MINI = r"""{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if system or tools %}
  {{- '<|system|>' + (system or 'You are a helpful assistant with some tools.') }}
  {%- if tools %}{{ '<|tool|>' + (tools | map(attribute='function') | list | tojson) + '<|/tool|>' }}{% endif %}
  {{- '<|end|>' }}
{%- endif %}
{%- for message in rest %}
  {%- if message.role == 'tool' %}{{ '<|tool_response|>' + message.content + '<|end|>' }}
  {%- else %}
    {{- '<|' + message.role + '|>' + message.content }}
    {%- if message.tool_calls %}
      {{- '<|tool_call|>' + (message.tool_calls | map(attribute='function') | list | tojson) + '<|/tool_call|>' }}
    {%- endif %}
    {{- '<|end|>' }}
  {%- endif %}
{%- endfor %}
{{- '<|assistant|>' if add_generation_prompt else eos_token }}"""

_MISTRAL = r"""{{- bos_token }}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- set place = namespace(last_user=-1) %}
{%- for message in rest %}{% if message.role == 'user' %}{% set place.last_user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in rest %}
  {%- if message.role == 'user' %}
    {%- if tools and loop.index0 == place.last_user %}
      {{- '[AVAILABLE_TOOLS][' }}
      {%- for tool in tools %}
        {{- '{"type": "function", "function": {"name": "' + tool.function.name + '", "description": "' }}
        {{- tool.function.description + '", "parameters": ' + (tool.function.parameters | tojson) + '}}' }}
        {{- '' if loop.last else ', ' }}
      {%- endfor %}
      {{- '][/AVAILABLE_TOOLS]' }}
    {%- endif %}
    {%- set system = messages[0].content + '\n\n' if loop.last and messages[0].role == 'system' else '' %}
    {{- '[INST]' + system + message.content + '[/INST]' }}
  {%- elif message.tool_calls is defined %}
    {{- '[TOOL_CALLS][' }}
    {%- for call in message.tool_calls %}
      {%- if call.id | length != 9 %}{{ raise_exception('the id of a call has nine letters or digits') }}{% endif %}
      {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}
    {%- endfor %}
    {{- ']' + eos_token }}
  {%- elif message.role == 'assistant' %}{{ message.content + eos_token }}
  {%- elif message.role == 'tool' %}
    {{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}' }}
    {{- '[/TOOL_RESULTS]' }}
  {%- else %}{{ raise_exception('there is no role ' + message.role) }}{% endif %}
{%- endfor %}"""

_DEEPSEEK_R1 = r"""{{- bos_token }}
{%- for message in messages %}{% if message.role == 'system' %}{{ message.content }}{% endif %}{% endfor %}
{%- for message in messages %}
  {%- set after_answer = loop.previtem is defined and loop.previtem.role == 'tool' %}
  {%- if message.role == 'user' %}{{ '<｜User｜>' + message.content }}
  {%- elif message.role == 'assistant' %}
    {{- '' if after_answer else '<｜Assistant｜>' }}
    {{- (message.content or '').split('</think>')[-1] }}
    {%- if message.tool_calls %}
      {{- '<｜tool▁calls▁begin｜>' }}
      {%- for call in message.tool_calls %}
        {{- '' if loop.first else '\n' }}
        {{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\n```json\n' }}
        {{- (call.function.arguments | tojson) + '\n```<｜tool▁call▁end｜>' }}
      {%- endfor %}
      {{- '<｜tool▁calls▁end｜>' }}
    {%- endif %}
    {{- eos_token }}
  {%- elif message.role == 'tool' %}
    {{- '\n' if after_answer else '<｜tool▁outputs▁begin｜>' }}
    {{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
    {{- '' if loop.nextitem is defined and loop.nextitem.role == 'tool' else '<｜tool▁outputs▁end｜>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"""

_QWEN3_CODER = r"""{%- macro field(name, value) %}
  {%- set is_text = value is string or not (value is mapping or value is iterable) %}
  {{- '\n<' ~ name ~ '>' ~ (value | string if is_text else value | tojson) ~ '</' ~ name ~ '>' }}
{%- endmacro %}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- if messages[0].role == 'system' or tools %}
  {{- '<|im_start|>system\n' }}
  {%- if messages[0].role == 'system' %}{{ messages[0].content }}
  {%- else %}
    {{- 'You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks.' }}
  {%- endif %}
  {%- if tools %}
    {{- '\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>' }}
    {%- for tool in tools %}
      {%- set tool = tool.function %}
      {{- '\n<function>' + field('name', tool.name) + field('description', tool.description | trim) }}
      {{- '\n<parameters>' }}
      {%- for name, about in (tool.parameters.properties or {}) | items %}
        {{- '\n<parameter>' + field('name', name) }}
        {%- if about.type is defined %}{{ field('type', about.type | string) }}{% endif %}
        {%- if about.description is defined %}{{ field('description', about.description | trim) }}{% endif %}
        {%- for key, value in about | items if key not in ('name', 'type', 'description') %}
          {{- field(key, value) }}
        {%- endfor %}
        {{- '\n</parameter>' }}
      {%- endfor %}
      {%- for key, value in tool.parameters | items if key not in ('type', 'properties') %}
        {{- field(key, value) }}
      {%- endfor %}
      {{- '\n</parameters>\n</function>' }}
    {%- endfor %}
    {{- '\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n' }}
    {{- '<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n' }}
    {{- '<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\n' }}
    {{- 'multiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST ' }}
    {{- 'follow the ' }}
    {{- 'specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> ' }}
    {{- 'XML tags' }}
    {{- '\n- Required parameters MUST be specified\n- You may provide optional reasoning for your function call in ' }}
    {{- 'natural language BEFORE the function call, but NOT after\n- If there is no function call available, answer ' }}
    {{- 'the question like normal with your current knowledge and do not tell the user about function calls\n' }}
    {{- '</IMPORTANT>' }}
  {%- endif %}
  {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in rest %}
  {%- if message.role == 'tool' %}
    {{- '' if loop.previtem is defined and loop.previtem.role == 'tool' else '<|im_start|>user\n' }}
    {{- '<tool_response>\n' + message.content + '\n</tool_response>\n' }}
    {{- '' if loop.nextitem is defined and loop.nextitem.role == 'tool' else '<|im_end|>\n' }}
  {%- elif message.tool_calls %}
    {{- '<|im_start|>assistant' }}
    {%- if message.content | trim %}{{ '\n' + message.content | trim + '\n' }}{% endif %}
    {%- for call in message.tool_calls %}
      {{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
      {%- for name, value in call.function.arguments | items %}
        {%- set is_text = value is string or not (value is mapping or value is iterable) %}
        {{- '<parameter=' + name + '>\n' ~ (value | string if is_text else value | tojson) ~ '\n</parameter>\n' }}
      {%- endfor %}
      {{- '</function>\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

_GLM45 = r"""{{- '[gMASK]<sop>' }}
{%- if tools %}
  {{- '<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
  {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n' }}
  {%- for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}
  {{- '</tools>\n\nFor each function call, output the function name and arguments within the following XML ' }}
  {{- 'format:\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n' }}
  {{- '<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>' }}
{%- endif %}
{%- set place = namespace(last_user=-1) %}
{%- for message in messages %}
  {%- if message.role == 'user' %}{% set place.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- set is_quick = enable_thinking is defined and not enable_thinking %}
{%- for message in messages %}
  {%- if message.role == 'user' %}
    {{- '<|user|>\n' + message.content }}
    {{- '/nothink' if is_quick and not message.content.endswith('/nothink') else '' }}
  {%- elif message.role == 'assistant' %}
    {%- set is_kept = message.reasoning_content and loop.index0 > place.last_user %}
    {{- '<|assistant|>\n<think>' + (message.reasoning_content.strip() if is_kept else '') + '</think>' }}
    {%- if message.content.strip() %}{{ '\n' + message.content.strip() }}{% endif %}
    {%- for call in message.tool_calls %}
      {{- '\n<tool_call>' + call.function.name + '\n' }}
      {%- for name, value in call.function.arguments | items %}
        {{- '<arg_key>' + name + '</arg_key>\n<arg_value>' }}
        {{- (value if value is string else value | tojson) + '</arg_value>\n' }}
      {%- endfor %}
      {{- '</tool_call>' }}
    {%- endfor %}
  {%- elif message.role == 'tool' %}
    {{- '' if loop.previtem is defined and loop.previtem.role == 'tool' else '<|observation|>' }}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
  {%- else %}{{ '<|system|>\n' + message.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' + ('\n<think></think>' if is_quick else '') }}{% endif %}"""

OWN_TEMPLATES: Mapping[str, OwnTemplate] = {
    "gemma3": OwnTemplate(source=_GEMMA, special_tokens={"bos_token": "<bos>", "eos_token": "<end_of_turn>"}),
    "phi-3": OwnTemplate(source=_PHI3, special_tokens={"eos_token": "<|endoftext|>"}),
    "phi-4-mini": OwnTemplate(source=_PHI4_MINI, special_tokens={"eos_token": "<|endoftext|>"}),
    "mistral": OwnTemplate(source=_MISTRAL, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}),
    "deepseek-r1": OwnTemplate(
        source=_DEEPSEEK_R1,
        special_tokens={"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    ),
    "glm-4.5": OwnTemplate(source=_GLM45, special_tokens={"eos_token": "<|endoftext|>"}),
    "qwen3-coder": OwnTemplate(source=_QWEN3_CODER, special_tokens={"eos_token": "<|im_end|>"}),
}
