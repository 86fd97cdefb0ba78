"""Who sends: every kind of task and canvas. What was accepted is remembered, with what must come of it."""

from dataclasses import dataclass, field

import redis
from amqp.exceptions import AMQPError
from celery import chain, chord, group
from kombu.exceptions import OperationalError

from tests.chaos.actor import Spontaneous
from tests.chaos.crew import GPUS, POOLS

#: What a send may raise while Redis or RabbitMQ is away. Celery's result backend gives up in words of its own
#: (RuntimeError), and kombu, for a plain task, where its channel was closed meanwhile (AttributeError, in
#: `Channel._connparams`).
REFUSALS = (OperationalError, AMQPError, redis.exceptions.RedisError, RuntimeError, OSError, AttributeError)
#: More that wait than this, and senders wait too.
MOST_WAITING = 60


@dataclass
class Wish:
    """Something that was sent.

    Attributes:
        kind: For people.
        first: The ids of the tasks that are sent at once.
        then: The ids of those that Celery sends, each when all before it have succeeded.
        is_accepted: Its send has returned; else it may be held all the same, or a part of it.
        has_result: Its end is stored.
        runs_at_most: None for as often as it takes.
    """

    kind: str
    first: list[str]
    then: list[str] = field(default_factory=list)
    is_accepted: bool = False
    has_result: bool = True
    runs_at_most: int | None = None

    @property
    def tasks(self):
        """All ids."""
        return [*self.first, *self.then]


class Sender(Spontaneous):
    """Sends one thing after the other."""

    def __init__(self, chaos, number, tasks, every):
        super().__init__(chaos, f"sender{number}", every)
        self._tasks, self._number = tasks, 0
        kinds = {
            self._single: 30, self._ending: 10, self._again: 10, self._once: 4, self._special: 10, self._silent: 3,
            self._chain: 8, self._group: 6, self._chord: 8, self._mapped: 4,
        }  # fmt: skip
        self._makers, self._weights = list(kinds), list(kinds.values())

    def act(self):
        """Sends something, unless too much waits."""
        self._number += 1
        wish, signature, options = self.chance.choices(self._makers, self._weights)[0]()
        try:
            if self.chaos.waiting() > MOST_WAITING:
                self.chaos.count("not sent, as many waited")
                return
            self.chaos.wishes.append(wish)
            signature.apply_async(**options)
        except REFUSALS as error:
            self.chaos.count("sends refused")
            self.say(f"{wish.kind} {wish.tasks} was refused: {error!r}")
        else:
            wish.is_accepted = True
            self.chaos.count(f"sent: {wish.kind}")

    def _id(self, kind):
        self._number += 1
        return f"{self.name}-{self._number}-{kind}"

    def _seconds(self):
        return round(min(4.0, self.chance.expovariate(2.5)), 2)

    def _options(self):
        """Of any message."""
        options = {"priority": self.chance.randrange(4), "pool": self.chance.choice(POOLS)}
        what = self.chance.random()
        if what < 0.15:
            options["countdown"] = round(self.chance.uniform(0.1, 5), 1)
        elif what < 0.3:
            options["expires"] = round(self.chance.uniform(0.5, 8), 1)
        elif what < 0.4:
            options["gpu"] = self.chance.choice(GPUS)
        return options

    def _part(self, name, *args):
        return getattr(self._tasks, name).si(*args or (self._seconds(),)).set(task_id=self._id(name))

    def _of_one(self, name, *args, **more):
        part = self._part(name, *args)
        return Wish(name, [part.options["task_id"]], **more), part, self._options()

    def _single(self):
        return self._of_one(self.chance.choice(("work", "work", "careful")))

    def _ending(self):
        return self._of_one(self.chance.choice(("fail", "die", "timed", "give_back")))

    def _again(self):
        if self.chance.random() < 0.5:
            return self._of_one("retry", self.chance.randrange(3), round(self.chance.uniform(0, 2), 1))
        return self._of_one(self.chance.choice(("replace", "reject")))

    def _once(self):
        return self._of_one("once", runs_at_most=1)

    def _special(self):
        return self._of_one(self.chance.choice(("limited", "hold_gil", "want_memory")))

    def _silent(self):
        return self._of_one("silent", has_result=False)

    def _parts(self, fewest=2):
        names = ["work", "work", "careful", "fail", "plain", "retry"]
        chosen = [self.chance.choices(names, (6, 6, 6, 1, 3, 2))[0] for _ in range(self.chance.randint(fewest, 4))]
        return [self._part(name, *(1, 0.5) if name == "retry" else ()) for name in chosen]

    def _chain(self):
        parts = self._parts()
        ids = [part.options["task_id"] for part in parts]
        return Wish("chain", ids[:1], ids[1:]), chain(*parts), {}

    def _group(self):
        parts = self._parts()
        return Wish("group", [part.options["task_id"] for part in parts]), group(parts), {}

    def _chord(self):
        parts, body = self._parts(), self._tasks.collect.s(self._seconds()).set(task_id=self._id("collect"))
        ids = [part.options["task_id"] for part in parts]
        return Wish("chord", ids, [body.options["task_id"]]), chord(parts, body), {}

    def _mapped(self):
        mapped = self._tasks.work.map([0.05, self._seconds()]).set(task_id=self._id("map"))
        return Wish("map", [mapped.options["task_id"]]), mapped, {}
