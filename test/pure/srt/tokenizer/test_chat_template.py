"""Chat templates that come from anywhere: their work is bounded, Python's insides are shut."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import is_error
from helpers.paths import ROOT
from helpers.scripted import Scripted, posted
from helpers.toy_tokenizer import byte_level, sentencepiece
from sglang.srt.runtime.conversations.conversation import prompt_of
from sglang.srt.tokenizer import Tokenizer, TokenizerError
from sglang.srt.tokenizer.jinja_chat_template import (
    ChatTemplateError,
    JinjaChatTemplate,
    SlowTemplateError,
)
from sglang.srt.tokenizer.templates import NAMES, built_in, family_of

TALK = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}]  # fmt: skip


def rendered(source: str, **variables: Any) -> str:
    return JinjaChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        TALK, **variables
    )


# -- work -----------------------------------------------------------------------------------------

TWICE = "{% set ns = namespace(x=FIRST) %}{% for a in range(60) %}STEP{% endfor %}"
NESTED = TWICE.replace("FIRST", "[1]").replace("STEP", "{% set ns.x = [ns.x, ns.x] %}")
DOUBLED = TWICE.replace("FIRST", "'x' * 9")
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SLOW = {
    "loops": ENDLESS,
    "loops without a turn": ENDLESS.replace("9) %}{% endfor", "9) if false %}{% endfor"),
    "macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "blocks of a loop": ENDLESS.replace("{% endfor %}", "{% set x %}a{% endset %}{% endfor %}", 1),
    "maps": "{{ ((range(90000) | list) * 20) | select('divisibleby', 7) | list | length }}",
}  # fmt: skip
LARGE = {
    "times": "{{ 'x' * 10**10 }}",
    "times of a variable": "{{ ('x' * huge) | length }}",
    "times of a list": "{{ ([1] * huge) | length }}",
    "a list that holds itself twice": NESTED + "{{ ns.x | tojson }}",
    "and is compared": NESTED.replace("[1]", "[[1], [1]]") + "{{ ns.x[0] == ns.x[1] }}",
    "a tuple as a key": NESTED.replace("[1]", "(1,)").replace("[ns.x, ns.x]", "(ns.x, ns.x)"),
    "a dict of dicts": TWICE.replace("FIRST", "{}").replace(
        "STEP", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"
    ),
    "a dict by its function": TWICE.replace("FIRST", "1").replace(
        "STEP", "{% set ns.x = dict(a=ns.x, b=ns.x) %}"
    ),
    "groups of groups": TWICE.replace("FIRST", "[[1, 'x' * 10**6]]").replace(
        "STEP", "{% set ns.x = ns.x | groupby(1) %}"
    ),
    "a long text many times": "{{ (['x' * 10**6] * 1000) | length }}",
    "a list of lists by plus": DOUBLED.replace("'x' * 9", "[['x' * 10**5]]").replace(
        "STEP", "{% set ns.x = ns.x + ns.x %}"
    ),
    "letters": "{{ ('語' * 3 * 10**7) | list | length }}",
    "sorted letters": "{{ ('語' * 3 * 10**7) | sort | length }}",
    "parts": "{{ ('ab,' * 10**7).split(',') | length }}",
    "words": "{{ ('ab\u2003' * 10**7).split() | length }}",
    "lines": "{{ ('ab\n' * 10**7).splitlines() | length }}",
    "twice with a tilde": DOUBLED.replace("STEP", "{% set ns.x = ns.x ~ ns.x %}"),
    "twice with a plus": DOUBLED.replace("STEP", "{% set ns.x = ns.x + ns.x %}"),
    "twice in a block": DOUBLED.replace(
        "STEP", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"
    ),
    "replace": "{{ ('x' * 10000) | replace('x', 'y' * 10000) | length }}",
    "replace of a text": "{{ ('x' * 10000).replace('x', 'y' * 10000) | length }}",
    "replace of nothing": "{{ ('x' * 10000).replace('', 'y' * 10000) | length }}",
    "width": "{{ 'x'.center(huge) }}",
    "zeros": "{{ 'x'.zfill(huge) }}",
    "tabs": "{{ ('\t' * 10000).expandtabs(10**6) | length }}",
    "format": "{{ '%10000000000d' % 1 }}",
    "format of a variable width": "{{ '%*d' % (10**9, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format method": "{{ '{:10000000000}'.format(1) }}",
    "format method of a variable width": "{{ '{:{}}'.format(1, 10**9) }}",
    "join": "{{ ('x' * 10000).join(['y'] * 10000) | length }}",
    "join filter": "{{ ((['y'] * 10000) | join('x' * 10000)) | length }}",
    "output": "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "constant output": f"{{% for a in range(99999) %}}{'y' * 10000}{{% endfor %}}",
    "slices": "{% set ns = namespace(l=[]) %}{% set s = 'x' * 10**7 %}"
    "{% for a in range(99999) %}{% set ns.l = ns.l + [s[1:]] %}{% endfor %}",
    "power": "{{ 10 ** huge }}",
    "numbers": TWICE.replace("FIRST", "9").replace("STEP", "{% set ns.x = ns.x * ns.x %}"),
}
REFUSED = {
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "blocks of themselves": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "sum": "{{ [[1]] | sum(start=[]) }}",
    "lorem ipsum": "{{ lipsum(n=100000) }}",
    "classes": "{{ ''.__class__.__mro__ }}",
    "a class alone": "{{ ''.__class__ }}",
    "a class by item": "{{ ''['__class__'] }}",
    "a class by filter": "{{ '' | attr('__class__') }}",
    "a class by map": "{{ messages | map(attribute='__class__') | list }}",
    "a class by format": "{{ '{0.__class__}'.format(1) }}",
    "subclasses": "{{ messages.__class__.__base__.__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "globals of a constructor": "{{ cycler.__init__.__globals__ }}",
    "the environment": "{{ self.__init__ }}",
    "a text that is divided": "{{ '%999999999d' is even }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "a change of the messages": "{{ messages.append(1) }}",
    "a change of a message": "{{ (messages | first).update({'a': 1}) }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000}) }}",
}


@pytest.mark.parametrize("name", SLOW)
def test_a_template_that_takes_too_long_is_stopped(name: str) -> None:
    template = JinjaChatTemplate(SLOW[name], {})
    began = time.thread_time()
    with pytest.raises(SlowTemplateError, match=r"stopped: it takes more than 0\.1 s"):
        template.render(TALK, seconds=0.1)
    assert time.thread_time() - began < 20


@pytest.mark.parametrize("name", LARGE)
def test_a_template_that_makes_too_much_is_stopped(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ChatTemplateError, match=r"stopped: it (makes|formats)"):
        rendered(LARGE[name], huge=10**10, seconds=60.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_shut_is_refused(name: str) -> None:
    with pytest.raises(ChatTemplateError):
        rendered(REFUSED[name])


def test_a_source_that_cannot_be_compiled() -> None:
    for source in ("{{ " + "(" * 100_000 + ")" * 100_000 + " }}", "{% if 1 %}" * 3000,
                   "{{ 1 | center }}", "x" * (2 << 20)):  # fmt: skip
        with pytest.raises(ChatTemplateError, match="the chat template"):
            JinjaChatTemplate(source, {})


def test_what_users_say_is_no_template() -> None:
    talk = [{"role": "user", "content": "{{ 7 * 7 }}{% for %}"}]
    template = JinjaChatTemplate("{{ messages[0].content }}", {})
    assert template.render(talk) == "{{ 7 * 7 }}{% for %}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ ' a ' | trim }}{{ 'x' * 3 }}{{ 2 ** 3 }}{{ 'a' ~ 1 ~ none }}", "axxx8a1None"),
        ("{{ '%05.2f|%s' % (1.5, 'a') }}{{ '{:>4}|{}'.format(1, 2) }}", "01.50|a   1|2"),
        ("{{ 'year 2024: %d' % 3 }}{{ 'year 2024: {}'.format(3) }}", "year 2024: 3year 2024: 3"),
        ("{{ ['a', 'b'] | join(', ') }}{{ ', '.join(['a', 'b']) }}", "a, ba, b"),
        ("{{ messages | map(attribute='role') | join('-') }}", "system-user-assistant-user"),
        ("{{ messages | join('-', attribute='content') }}", "S-U-A-V"),
        ("{{ 'a\nb' | indent(2) }}{{ 'a\nb' | indent(2, true) }}", "a\n  b  a\n  b"),
        ("{{ 'aXbX' | replace('X', '--', 1) }}{{ 'aX'.replace('X', '') }}", "a--bXa"),
        ("{{ [1, 2.5] | sum }}{{ 1.256 | round(2) }}", "3.51.26"),
        ("{{ {'a': [1, none]} | tojson }}", '{"a": [1, null]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ messages[1:] | length }}{{ 'abc'[::-1] }}{{ (messages | last).content }}", "3cbaV"),
        ("{% for m in messages %}{{ m.content.startswith('A') | string }}{{ loop.last }}"
         "{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}", "FalseFalseFalseFalse"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') }}"
         "{% macro c() %}[{{ caller() }}]{% endmacro %}{% call c() %}b{% endcall %}", "<a>[b]"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ x is defined }}{{ x or 'y' }}", "Falsey"),
        ("{{ 'a-b'.split('-')[-1] }}{{ 'q' in 'query' }}{{ 5 is divisibleby 5 }}", "bTrueTrue"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "2"),
        ("{% generation %}{{ strftime_now('%Y') | length }}{% endgeneration %}", "4"),
        ("{% set a %}x{{ 1 }}{% endset %}{{ a | upper }}{{ [1, [2]] }}", "X1[1, [2]]"),
    ],
)  # fmt: skip
def test_what_templates_do_otherwise(source: str, text: str) -> None:
    assert rendered(source) == text


def test_many_messages_are_no_trouble() -> None:
    talk = [{"role": "user", "content": "some words " * 100}] * 3000
    source = built_in("chatml")
    assert source is not None
    assert len(JinjaChatTemplate(source, {}).render(talk)) > 3000 * 1100


# -- the server -----------------------------------------------------------------------------------


def with_template(path: Path, source: str) -> Scripted:
    (path / "t.jinja").write_text(source)
    return Scripted(Tokenizer(byte_level(path), str(path / "t.jinja")))


@pytest.mark.slow
def test_a_hostile_template_is_a_400_and_holds_nobody_up(tmp_path: Path) -> None:
    scripted = with_template(tmp_path, "{% if messages|length > 1 %}" + ENDLESS + "{% endif %}a")
    error = is_error(posted(scripted, "/v1/chat/completions", {"messages": TALK}), 400)
    assert (error["param"], "it takes more than 1 s" in error["message"]) == ("messages", True)

    async def both() -> int:
        """Count the turns that a concurrent loop gets."""
        from sglang.srt.config import Config
        from sglang.srt.requests.request_error import RequestError
        from sglang.srt.web.server_state import ServerState

        state = ServerState(Config.of(), scripted)  # type: ignore[arg-type]
        hostile = asyncio.ensure_future(prompt_of(state.runtime, TALK, None, {}, None, False))
        turns = 0
        while not hostile.done():
            await asyncio.sleep(0.001)
            turns += 1
        with pytest.raises(RequestError):
            hostile.result()
        return turns

    assert asyncio.run(both()) > 10  # one or two where the template keeps the loop


# -- built-in templates ---------------------------------------------------------------------------

WRITTEN = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "deepseek": "<s>S<｜User｜>U<｜Assistant｜>A</s><｜User｜>V<｜Assistant｜>",
    "gemma": "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
    "llama-2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]",
    "llama-3": "<s>"
    + "".join(f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n{m['content']}<|eot_id|>"
              for m in TALK)
    + "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "llama-4": "<s>"
    + "".join(f"<|header_start|>{m['role']}<|header_end|>\n\n{m['content']}<|eot|>" for m in TALK)
    + "<|header_start|>assistant<|header_end|>\n\n",
    "mistral": "<s>[INST] S\n\nU[/INST] A</s>[INST] V[/INST]",
    "phi-3": "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>"
    "\n<|assistant|>\n",
    "vicuna": "S USER: U ASSISTANT: A</s>USER: V ASSISTANT:",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|user|>\nV</s>\n"
    "<|assistant|>\n",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_built_in_templates(name: str) -> None:
    source = built_in(name)
    assert source is not None
    assert rendered(source) == WRITTEN[name]
    template = JinjaChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    plain = template.render(TALK, add_generation_prompt=False)
    assert WRITTEN[name].startswith(plain)
    begun = template.render([TALK[1], {"role": "assistant", "content": "So"}],
                            continue_final_message=True)  # fmt: skip
    assert begun.endswith("So")
    assert "3" in template.render([TALK[1], {"role": "tool", "content": "3"}])


def test_a_template_by_name_by_path_and_by_family(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = byte_level(tmp_path / "a")
    assert Tokenizer(path, "vicuna").apply_chat_template(TALK).endswith("ASSISTANT:")
    with pytest.raises(TokenizerError, match=r"no chat template at 'vicunia'; .* chatml, deepseek"):
        Tokenizer(path, "vicunia")
    (path / "tokenizer_config.json").write_text("{}")
    with caplog.at_level(logging.INFO, "sglang"):
        assert Tokenizer(path).chat_template == built_in("chatml")
    assert "control tokens of chatml" in caplog.text
    assert family_of({"<s>", "[INST]", "[/INST]"}) == "mistral"
    assert family_of({"<s>", "</s>"}) is None


def test_a_model_without_a_template_says_so_on_chat_routes_alone(tmp_path: Path) -> None:
    scripted = Scripted(Tokenizer(sentencepiece(tmp_path)))
    scripted.text = "fine"
    error = is_error(posted(scripted, "/v1/chat/completions", {"messages": TALK}), 400)
    assert "--chat-template" in error["message"]
    assert "chatml" in error["message"]


def test_the_package_has_the_templates() -> None:
    text = (ROOT / "setup.py").read_text()
    assert '"tokenizer/templates/*.jinja"' in text
    assert set(WRITTEN) == set(NAMES)
