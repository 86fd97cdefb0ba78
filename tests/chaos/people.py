"""Operators, who command; and strangers, who take GPUs as any other program may."""

import redis
from celery.result import AsyncResult

from celery_gpulease.dispatch.revoking import cancel
from celery_gpulease.reconcile.beat import reconcile_now
from tests.chaos.actor import Spontaneous
from tests.chaos.crew import GPUS
from tests.chaos.senders import REFUSALS
from tests.chaos.watch import AWAY


class Operator(Spontaneous):
    """Gives any command, to any GPU and about any task, through the same network as the workers."""

    def __init__(self, chaos, every):
        super().__init__(chaos, "operator", every)
        orders = {
            self._drain: 3, self._undrain: 6, self._cancel: 3, self._bump: 4, self._force: 3, self._reconcile: 4,
            self._revoke: 3, self._terminate: 3,
        }  # fmt: skip
        self._orders, self._weights = list(orders), list(orders.values())

    def act(self):
        """One command."""
        order = self.chance.choices(self._orders, self._weights)[0]
        gpu, which, priority = self.chance.choice(GPUS), self.chance.random(), self.chance.randrange(4)
        wishes = self.chaos.wishes[-30:]  # what came last is most likely still there
        tasks = [task for wish in wishes for task in wish.tasks] or ["nobody"]
        task = tasks[int(which * len(tasks))]
        try:
            order(gpu, task, priority)
        except REFUSALS as error:
            self.chaos.count("orders refused")
            self.say(f"{order.__name__} was refused: {error!r}")
        else:
            self.chaos.count(f"orders: {order.__name__[1:]}")

    def _drain(self, gpu, *_):
        self.say(f"drains {gpu}")
        self.chaos.ledger.drain(gpu, drained=True)

    def _undrain(self, gpu, *_):
        for one in (gpu, *GPUS[:3]):
            self.chaos.ledger.drain(one, drained=False)

    def _cancel(self, _, task, *__):
        self._revoked(task)
        cancel(self.chaos.app, self.chaos.ledger, [task])

    def _bump(self, _, task, priority):
        self.chaos.ledger.bump(task, priority)

    def _force(self, gpu, *_):
        self.say(f"forces {gpu}")
        self.chaos.ledger.force(gpu)

    def _reconcile(self, *_):
        for correction in reconcile_now(self.chaos.app):
            self.chaos.count("corrections")
            self.say(f"corrected: {correction}")

    def _revoke(self, _, task, *__):
        self._revoked(task)
        AsyncResult(task, app=self.chaos.app).revoke()

    def _terminate(self, _, task, *__):
        self._revoked(task)
        AsyncResult(task, app=self.chaos.app).revoke(terminate=True)

    def _revoked(self, task):
        self.chaos.revoked.add(task)
        self.say(f"revokes {task}")


class Stranger(Spontaneous):
    """Takes a GPU for a while, or asks for the next turn; its own connection is never broken.

    Attributes:
        held: (gpu, from, to) for each time, by the server's clock.
    """

    def __init__(self, chaos, every):
        super().__init__(chaos, "stranger", every)
        self.held = []

    def act(self):
        """Takes, holds and gives back."""
        gpu, seconds = self.chance.choice(GPUS), self.chance.uniform(0.2, 4)
        wants, gives = self.chance.random() < 0.5, self.chance.random() < 0.7
        try:
            self._borrow(gpu, seconds, wants=wants, gives=gives)
        except AWAY as error:
            self.say(f"{error!r}")

    def _borrow(self, gpu, seconds, *, wants, gives):
        client, keys = self.chaos.world.client, self.chaos.ledger.keys
        if wants:
            client.set(keys.want(gpu), self.name, px=3000)
            self.chaos.count("strangers: want")
        has_it, began = self._at_once(client, "set", keys.lease(gpu), self.name, nx=True, px=int(seconds * 1000))
        if not has_it:
            self.chaos.count("strangers: in vain")
            return
        self.chaos.count("strangers: take")
        if wants:
            client.delete(keys.want(gpu))
        self._is_over.wait(seconds / 2 if gives else seconds + 0.5)
        if not gives:
            self.held.append((gpu, began, began + seconds - 0.05))
            return
        holder, ended = self._at_once(client, "get", keys.lease(gpu))
        if holder == self.name:
            client.delete(keys.lease(gpu))
            self.held.append((gpu, began, ended))

    @staticmethod
    def _at_once(client: redis.Redis, command, *args, **more):
        """A command's answer, and the server's time at that moment."""
        with client.pipeline() as both:
            getattr(both, command)(*args, **more)
            answer, (seconds, microseconds) = both.time().execute()
        return answer, seconds + microseconds / 1e6
