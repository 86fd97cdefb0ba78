"""What a signal does to `gpulease run`, before its turn, between that and the program's start, and after."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from celery_gpulease.programs import running
from celery_gpulease.programs.running import PASSED_ON, Signals, Stopped, as_shown


class Group:
    """Stands in for a program: it notes what it is sent."""

    def __init__(self):
        self.sent = []

    def send(self, number):
        self.sent.append(number)


def test_while_it_waits_what_ends_a_program_ends_the_waiting_and_the_rest_does_nothing():
    signals = Signals()
    with signals.heard():
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTSTP)
        with pytest.raises(Stopped) as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.number == signal.SIGTERM


def test_what_comes_before_the_program_has_begun_reaches_it_then_and_what_comes_later_at_once():
    signals, group = Signals(), Group()
    with signals.heard():
        signals.is_waiting = False
        os.kill(os.getpid(), signal.SIGTERM)
        signals.pass_on_to(group)
        os.kill(os.getpid(), signal.SIGHUP)
    assert group.sent == [signal.SIGTERM, signal.SIGHUP]


def test_afterwards_each_signal_means_what_it_meant_and_what_was_ignored_was_not_heard():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        handlers = [signal.getsignal(number) for number in PASSED_ON]
        with Signals().heard():
            os.kill(os.getpid(), signal.SIGHUP)
        assert [signal.getsignal(number) for number in PASSED_ON] == handlers
    finally:
        signal.signal(signal.SIGHUP, before)


IN_NO_SESSION_OF_ITS_OWN = "from celery_gpulease.programs.group import _is_in_foreground; print(_is_in_foreground())"


def test_a_terminal_of_another_session_is_not_ours_to_give():
    """`setsid gpulease run` keeps the terminal as its input, and may not ask who has it."""
    main, terminal = os.openpty()
    command = [sys.executable, "-c", IN_NO_SESSION_OF_ITS_OWN]
    ended = subprocess.run(
        command, stdin=terminal, capture_output=True, start_new_session=True, text=True, check=True, timeout=60
    )
    os.close(main)
    os.close(terminal)
    assert ended.stdout.strip() == "False"


def test_a_command_is_shown_in_one_line_that_does_nothing_to_a_terminal():
    assert as_shown("run: sh -c '\x1b]0;title\x07 é\n  b'") == "run: sh -c '?]0;title? é b'"
    assert as_shown("x" * 999) == "x" * 200


def test_what_ends_the_waiting_again_and_again_ends_it_as_once(monkeypatch):
    def stop(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(running, "Waiter", lambda *_: SimpleNamespace(wait=stop, leave=stop))
    assert running.run(None, ["true"], "default", 0, None) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("program", "code"), [("no-such", 127), ("", 127), ("./no-such", 127), ("mine", 126), ("./mine", 126), ("./", 126)]
)
def test_what_cannot_be_started_is_told_as_by_a_shell_without_a_look_at_redis(
    tmp_path, monkeypatch, capsys, program, code
):
    (tmp_path / "mine").write_text("no program")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin")
    assert running.run(None, [program], "default", 0, None) == code
    assert (
        capsys.readouterr().err
        == f"gpulease: {program}: {'command not found' if code == 127 else 'Permission denied'}\n"
    )
