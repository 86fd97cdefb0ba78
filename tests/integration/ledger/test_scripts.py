"""Every Lua operation is what its header says, and is there when it is called."""

import re

import pytest

from celery_gpulease.ledger import scripts
from celery_gpulease.ledger.kept import Kept
from celery_gpulease.worker.request import PASSED_ON_FOR

BOUND = re.compile(r"^local ([\w, ]+) =\s+(unpack\(ARGV(?:, \d+)?\)|[^\n]*ARGV\[\d+\][^\n]*)$", re.MULTILINE)
VARIABLE = {"forget", "forget_lines", "snapshot", "survey"}  # takes any number of the same


@pytest.mark.parametrize("name", sorted(set(scripts.names()) - VARIABLE))
def test_the_arguments_of_the_header_are_bound_by_the_same_names_in_its_order(name):
    bound = []
    for match in BOUND.finditer(scripts.OPERATIONS[name]):
        names = match[1].split(", ")
        if unpacked := re.fullmatch(r"unpack\(ARGV(?:, (\d+))?\)", match[2]):
            bound += list(enumerate(names, int(unpacked[1] or 1) - 1))
        else:
            bound += [(int(at) - 1, one) for at, one in zip(re.findall(r"ARGV\[(\d+)\]", match[2]), names, strict=True)]
    assert [one for _, one in sorted(bound)] == list(scripts.source(name).arguments)


@pytest.mark.parametrize("name", scripts.names())
def test_the_header_is_a_sentence_then_keys_arguments_and_replies(name):
    header = scripts.OPERATIONS[name].split("\n\n")[0]
    kinds = re.findall(r"^-- (KEYS|ARGV|Returns|include):", header, re.MULTILINE)
    assert kinds == ["KEYS", "ARGV", "Returns", "include"]
    assert re.match(r"-- [A-Z][^\n]+\.\n", header)
    assert "-- KEYS: prefix\n" in header


@pytest.mark.parametrize("name", scripts.names())
def test_what_it_includes_exists_and_its_sections_stand_in_their_order(name):
    own, text = scripts.OPERATIONS[name], scripts.source(name).text
    included = re.findall(r"^-- include: (.*)$", own, re.MULTILINE)
    assert {part for line in included for part in line.split()} <= scripts.INCLUDES.keys()
    sections = re.split(r"^-- include: .*\n", re.sub(r"\A(--.*\n)+", "", own), flags=re.MULTILINE)
    at = [text.index(one) for one in sections]
    assert at == sorted(at)
    assert text.endswith(sections[-1])


@pytest.mark.parametrize("name", scripts.names())
def test_it_has_every_function_once_and_none_that_it_does_not_need(name):
    code = re.sub(r" *--.*", "", scripts.source(name).text)
    functions = re.findall(r"^local function (\w+)", code, re.MULTILINE)
    assert len(functions) == len(set(functions))
    for function in functions:
        assert len(re.findall(rf"\b{function}\b", code)) > 1, function


def test_the_worker_knows_for_how_long_a_lease_is_passed_on_as_it_is():
    assert f"left_ms > ttl_ms * {1 - PASSED_ON_FOR:g} " in scripts.source("start").text


def test_a_missing_argument_is_a_type_error():
    with pytest.raises(TypeError, match=r"finish\.lua takes \('ticket',\), not \(\)"):
        scripts.arguments_of(scripts.source("finish"), {})


def test_an_unknown_argument_is_a_type_error(ledger):
    with pytest.raises(TypeError, match=r"finish\.lua takes \('ticket',\), not \('ticket', 'gpu'\)"):
        ledger._call("finish", ticket="t", gpu="node:0")


def test_scripts_that_the_server_has_forgotten_are_sent_again(world):
    held = world.held()
    world.ledger.hold(held)
    world.client.script_flush()
    assert world.ledger.hold(held) == "known"
    assert world.ledger.promote() == (0, 0)


def test_every_operation_is_a_method_of_the_ledger_or_a_view(ledger):
    called = {"snapshot": None, "survey": None, "turn": "take_turn"}
    for name in scripts.names():
        assert called.get(name, name) is None or hasattr(ledger, called.get(name, name))


def test_a_script_takes_one_key_so_that_a_cluster_can_serve_it(world, monkeypatch):
    """In a cluster every key of ours must hash to the slot of KEYS[1]: that is what `{gpu}:` is for."""
    asked = []
    monkeypatch.setattr(Kept, "ask", lambda _, *command: asked.append(command) or ["held"])
    world.hold()
    assert [one[2:4] for one in asked] == [(1, "gpu:")]


@pytest.mark.parametrize("name", scripts.names())
def test_a_file_is_short(name):
    assert len(scripts.OPERATIONS[name].splitlines()) <= 85


def test_the_assembled_texts_can_be_written_for_luacheck(tmp_path):
    scripts.main(str(tmp_path / "lua"))
    written = {one.stem: one.read_text("utf-8") for one in (tmp_path / "lua").iterdir()}
    assert written == {name: scripts.source(name).text for name in scripts.names()}
