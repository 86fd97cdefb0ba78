"""What must be true when a chaos is over; each check names what is not, with the story of the task."""

from collections import Counter

from celery_gpulease.ledger.checks import inconsistencies
from tests.chaos.watch import READY
from tests.faults.world import stored_state
from tests.waiting import wait_until

#: Seconds that everything has to end once all is mended: ten tries of what may fail, and whatever waits.
ENDS_WITHIN = 60.0


def is_plain(task):
    """No GPU task."""
    return task.endswith("-plain")


class Verdict:
    """Looks at a chaos whose disturbers have gone."""

    def __init__(self, chaos):
        self._chaos, self._world = chaos, chaos.world
        self._states = {}

    def wrongs(self):
        """What is wrong, in words, after all had time to end."""
        late = [*self._unless(lambda: not self._open_wishes(), self._open_wishes), *self._left()]
        self._runs = self._world.runs()
        checks = (
            self._overlaps,
            self._fences,
            self._second_ends,
            self._second_runs,
            self._unrun,
            self._robbed_strangers,
        )
        return [*late, *(found for check in checks for found in check())]

    def counts(self):
        """Tasks by their end."""
        tasks = [task for wish in self._chaos.wishes for task in wish.tasks]
        return Counter(self._state(task) or "never sent" for task in tasks)

    def story(self, task):
        """All that is known of a task, line by line in the order of time."""
        told = [
            (e["at"], f"ledger: {e['what']} {e['gpu']} {e['detail']}")
            for e in self._chaos.journal.entries.get(task, ())
        ]
        for run in self._world.runs(task):
            told.append((run.start, f"runs on {run.gpu}, fence {run.fence}, pid {run.pid}"))
            told += [(run.end, f"that run ends: {run.how}")] if run.end else []
        told += [(at, f"stored: {state}") for at, state in self._chaos.ends.stored.get(task, ())]
        told += list(self._said_of(task))
        return "\n".join(f"    {at:.3f} {what}" for at, what in sorted(told))

    def _said_of(self, task):
        for line in (self._world.folder / "chaos.log").read_text().splitlines():
            at, _, words = line.partition(" ")
            if task in words:
                yield float(at), words

    def _tell(self, words, task, with_it=()):
        others = [f"  beside it {other}:\n{self.story(other)}" for other in with_it if other != task]
        return "\n".join([f"{words}: {task}", self.story(task), *others])

    # everything ends

    def _unless(self, probe, tell):
        try:
            wait_until(probe, ENDS_WITHIN, "all to end")
        except AssertionError:
            yield from tell()

    def _state(self, task):
        if self._states.get(task) not in READY:
            self._states[task] = stored_state(self._world.server.url, task)
        return self._states[task]

    def _open_wishes(self):
        return [
            self._tell(f"{wish.kind}: accepted, and {self._state(task)}", task, wish.tasks)
            for wish in self._chaos.wishes
            if wish.is_accepted and wish.has_result
            for task in self._due(wish)
            if self._state(task) not in READY
            and not is_plain(task)  # the broker may lose those, as ever
            and not (wish.kind == "chord" and task in wish.then and self._is_dropped_body(task))
        ]

    def _is_dropped_body(self, task):
        """Did Celery give this chord's body up, and could not store that?

        So where Redis refuses to write from just after the chord's last part was counted (`on_chord_part_return` in
        celery/backends/redis.py); who repeats the part within six seconds finds that the body is somebody's already.
        """
        if self._chaos.journal.entries.get(task):
            return False
        refused = f"(SET celery-task-meta-{task} "
        return any(refused in log.read_text(errors="replace") for log in self._world.folder.glob("*.err"))

    def _due(self, wish):
        """What must have ended: what was sent, and what Celery sends when all before it have succeeded."""
        yield from wish.first
        before = list(wish.first)
        for task in wish.then:
            if any(self._state(one) != "SUCCESS" for one in before):
                return
            yield task
            before.append(task)

    def _left(self):
        client, ledger = self._world.client, self._chaos.observer
        yield from self._unless(
            lambda: not client.keys("gpu:lease:*"), lambda: [f"leases: {client.keys('gpu:lease:*')}"]
        )
        yield from self._unless(lambda: not client.keys("gpu:ticket:*"), self._tickets_left)
        yield from self._unless(lambda: not inconsistencies(ledger), lambda: inconsistencies(ledger))

    def _tickets_left(self):
        for key in self._world.client.keys("gpu:ticket:*"):
            ticket = self._world.client.hgetall(key)
            yield self._tell(f"its ticket is left, {ticket}", ticket["task_id"])

    # one GPU, one task

    def _overlaps(self):
        for line in self._world.journal():
            if line["what"] == "overlap":
                yield self._tell(f"another run was at work on {line['gpu']} under fence {line['fence']}", line["task"])

    def _fences(self):
        last = {}
        for run in sorted(self._runs, key=lambda one: one.start):
            if run.gpu in last and run.fence <= last[run.gpu] and run.task is not None:  # a map runs twice under one
                yield self._tell(f"fence {run.fence} came after {last[run.gpu]} on {run.gpu}", run.task)
            last[run.gpu] = max(run.fence, last.get(run.gpu, 0))

    def _robbed_strangers(self):
        for gpu, began, ended in self._chaos.stranger.held:
            entries = [e for e in self._chaos.journal.all if e["gpu"] == gpu and began < e["by_server"] < ended - 0.01]
            for entry in entries:
                if entry["what"] == "forced":
                    break
                if entry["what"] in ("claimed", "started", "regained"):
                    yield self._tell(f"{gpu} was a stranger's, and was {entry['what']}", entry["task_id"])

    # one end

    def _second_ends(self):
        celerys = {*self._chaos.revoked, *self._failed_by_celery()}
        for task in self._chaos.ends.stored:
            states = {state for _, state in self._chaos.ends.ends(task)}
            if len(states) > 1 and task not in celerys:
                yield self._tell(f"two ends, {states}", task)

    def _failed_by_celery(self):
        """What Celery fails although it has sent it, or will be found to have.

        A chain's next, where the success before it cannot be stored; a chord's body, where HOLD was not answered.
        """
        for wish in self._chaos.wishes:
            for number, task in enumerate(wish.then):
                before = [*wish.first, *wish.then[:number]]
                has_failed = any(state == "FAILURE" for one in before for _, state in self._chaos.ends.ends(one))
                if has_failed or self._failed_before_it_started(task):
                    yield task

    def _failed_before_it_started(self, task):
        started = [e["at"] for e in self._chaos.journal.entries.get(task, ()) if e["what"] == "started"]
        failed = [at for at, state in self._chaos.ends.ends(task) if state == "FAILURE"]
        return bool(failed) and (not started or failed[0] < started[0])

    def _second_runs(self):
        limits = {task: wish.runs_at_most for wish in self._chaos.wishes for task in wish.tasks if wish.runs_at_most}
        times = Counter(run.task for run in self._runs)
        for task, limit in limits.items():
            if times[task] > limit:
                yield self._tell(f"ran {times[task]} times", task)

    def _unrun(self):
        ran = {run.task for run in self._runs if run.how == "ok"}
        kinds = {task: wish.kind for wish in self._chaos.wishes for task in wish.tasks}
        for task, kind in kinds.items():
            if kind != "map" and not is_plain(task) and self._state(task) == "SUCCESS" and task not in ran:
                yield self._tell("SUCCESS, and never ran to its end", task)
