"""Chat templates come from files of others. Each ends in bounded time and memory, with a text or one
error."""

from __future__ import annotations

import time
from importlib.util import find_spec

import pytest

from jangin import CompileError
from jangin.frontends.gguf import chat
from jangin.frontends.gguf.chat import Renderer

pytestmark = pytest.mark.skipif(find_spec("jinja2") is None, reason="jinja2 isn't installed (extra `gguf`)")
HELLO = {"messages": [{"role": "user", "content": "hello"}], "bos_token": "<s>"}
LOOP = "{% for m in messages %}{{ bos_token }}[{{ m.role }}] {{ m['content'] }}\n{% endfor %}"
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
WRONG = {
    "more than \\d+ characters": "{% for a in range(9999) %}{{ 'a' * 9999 }}{% endfor %}",
    "more than \\d+ MiB of memory": "{% set n = namespace(t='aaaa') %}{% for i in range(60) %}"
    "{% set n.t = n.t ~ n.t %}{% endfor %}",
    "TemplateSyntaxError": "{% for %}",
    "UndefinedError.*nothing": "{{ nothing.at.all }}",
    "SecurityError|UndefinedError": "{{ ().__class__.__mro__[1].__subclasses__() }}",
    "ZeroDivisionError": "{{ 1 / 0 }}",
    "RecursionError|doesn't end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "refuses this conversation: no hello": "{{ raise_exception('no hello') }}",
}


@pytest.fixture(autouse=True)
def a_busy_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 120.0)


def test_a_template_is_rendered_again_and_again() -> None:
    render = Renderer(LOOP)
    for _ in range(3):
        assert render(HELLO) == "<s>[user] hello\n"


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_one_error(said: str) -> None:
    told = f"chat template (can't be used|refuses).*({said.split(': ')[-1]})"
    with pytest.raises(CompileError, match=told) as error:
        Renderer(WRONG[said])(HELLO)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)[:60]


def test_one_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next conversation has a new process."""
    monkeypatch.setattr(chat, "SECONDS", 0.5)
    render = Renderer("{% if messages|length > 1 %}" + ENDLESS + "{% endif %}" + LOOP)
    start = time.monotonic()
    with pytest.raises(CompileError, match=r"can't be used: it doesn't end in 0\.5 seconds"):
        render({**HELLO, "messages": HELLO["messages"] * 2})
    assert time.monotonic() - start < 20
    monkeypatch.setattr(chat, "SECONDS", 60.0)
    assert render(HELLO) == "<s>[user] hello\n"


def test_what_is_no_conversation() -> None:
    with pytest.raises(CompileError, match="texts, numbers, lists and dictionaries"):
        Renderer(LOOP)({"messages": [object()]})
