"""What the worker of a GPU asks and tells: that it is there, what it runs, and why its GPU takes no work."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.calls import Calls
from celery_gpulease.ledger.connection import in_our_words
from celery_gpulease.model import Presence

if TYPE_CHECKING:
    from celery_gpulease.model import Claim, Device

#: Seconds beyond a heartbeat after which what runs has said so, as in the grace after an outage (include/pulse.lua).
HELD_BACK: Final = 2.0


class Workers(Calls):
    """The operations of the worker of a GPU, but for those of what it runs."""

    def join(self, device: Device, pools: tuple[str, ...], presence: Presence, dead: str = "") -> list[str]:
        """Registers a GPU and who serves it.

        Args:
            device: The GPU.
            pools: Which it serves, in this order.
            presence: Of the worker.
            dead: An instance whose processes are certainly gone. Where no other's presence is in the way, the GPU and
                what that one left there are taken over in the same step, whatever is left of any ttl. Two may say so at
                the same time: one joins, the other is told of that one.

        Returns:
            ['joined'], ['in_use', presence of the other, its last report, '1' where it stops], or ['named', other GPU,
            and the same of its worker]: the device, or its index, is served under another id.

        Raises:
            ConfigurationError: The ledger is of another layout.
        """
        self._has_agreed = False  # it joins again where Redis was emptied, which forgets that too
        answer = self._claiming(
            "join",
            gpu=device.id,
            instance=presence.instance,
            presence=json.dumps(asdict(presence)),
            alias=device.alias,
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_bytes=device.memory_bytes,
            host=device.host,
            pools=",".join(pools),
            ttl_ms=round(self.settings.lease_ttl * 1000),
            heartbeat_ms=round(self.settings.heartbeat_interval * 1000),
            dead=dead,
            route=self.route_to(device.id),
        )
        return list(map(str, answer))

    def hold_back(self, gpu: str) -> None:
        """Nothing is given to a GPU before all who may have it have beaten once: a wish, which ends by itself."""
        with in_our_words("hold_back"):
            name, words = self.keys.want(gpu), "whoever had it when Redis forgot"
            self.client.set(name, words, nx=True, px=self._held_back_ms())

    def _held_back_ms(self) -> int:
        return round((self.settings.heartbeat_interval + HELD_BACK) * 1000)

    def recall(self, gpu: str, program_fence: int) -> int | None:
        """Where Redis has forgotten a program that its GPU's worker knows of, nothing is given to the GPU for a while.

        Args:
            gpu: Its id.
            program_fence: Of the last program that the worker heard of there; 0 for none.

        Returns:
            None where it was forgotten, else the fence of the program that has the GPU now; 0 for none.
        """
        word, *fence = self._call("recall", gpu=gpu, program_fence=program_fence, hold_ms=self._held_back_ms())
        return int(fence[0]) if word == "known" else None

    def last_presence(self, gpu: str) -> str | None:
        """What the last worker of this GPU said of itself, also when its presence has lapsed; None where it left."""
        with in_our_words("last_presence"):
            told: str | None = self.client.hget(self.keys.named("device", gpu), "presence")
        return told

    def neighbours(self, host: str) -> list[tuple[str, Presence]]:
        """The GPUs of a host, and what their last workers said of themselves; none that has left."""
        return [(str(gpu), Presence.from_json(told)) for gpu, told in self._call("neighbours", host=host)]

    def bury(self, gpu: str, dead: str) -> bool:
        """Takes up what a worker left whose processes are certainly gone, at once; False where somebody else did.

        Args:
            gpu: That it served.
            dead: Its instance.
        """
        return str(self._claiming("bury", gpu=gpu, dead=dead)[0]) == "buried"

    def holding(self, gpu: str) -> str:
        """The token of a GPU's claim, whoever has it; empty for none."""
        with in_our_words("holding"):
            return str(self.client.hget(self.keys.named("claim", gpu), "token") or "")

    def quarantine(self, gpu: str, reason: str, left: str) -> None:
        """No work for a GPU while something is left there, or work again where `left` is empty."""
        self._claiming("quarantine", gpu=gpu, reason=reason, left=left)

    def quarantine_device(self, gpu: str, reason: str, *, has_ended: bool = False) -> str:
        """No work for a GPU whose device is unwell, or used by what should not be there; work again without a reason.

        Args:
            gpu: Its id.
            reason: In words.
            has_ended: What is claimed there is over, and not settled yet.

        Returns:
            'quarantined', 'opened', 'unchanged' (it was so before) or 'busy': somebody holds the GPU, and may use it.
        """
        return str(self._claiming("quarantine_device", gpu=gpu, reason=reason, has_ended=int(has_ended))[0])

    def left(self, gpu: str) -> str:
        """What the last call of `quarantine` said is left there."""
        with in_our_words("left"):
            return str(self.client.hget(self.keys.named("closed", gpu), "left") or "")

    def report(self, gpu: str, presence: Presence, running: Claim | None, grace: float) -> str:
        """Says that the worker lives and what it runs.

        Args:
            gpu: Its id.
            presence: Of the worker.
            running: The claim that it runs or is about to run.
            grace: Seconds after which a claim that was not started is routed once more.

        Returns:
            'present', 'closing' (it is known to take no work), 'rerouted', 'unregistered' (join again) or 'taken'
            (another worker serves this GPU).
        """
        answer = self._claiming(
            "report",
            gpu=gpu,
            instance=presence.instance,
            presence=json.dumps(asdict(presence)),
            running_token=running.token if running else "",
            grace_ms=round(grace * 1000),
        )
        return str(answer[0])

    def beat(self, running: Claim, presence: Presence) -> str:
        """RENEW and REPORT in one, for a worker that runs this and nothing else, and where nothing is unusual.

        Returns:
            'present' or 'closing', as from REPORT, and the lease is renewed; or 'unusual': nothing has changed, and
            RENEW and REPORT are to be asked.
        """
        answer = self._call(
            "beat",
            gpu=running.gpu,
            ticket=running.ticket,
            token=running.token,
            presence=json.dumps(asdict(presence)),
        )
        return str(answer[0])

    def close(self, gpu: str, presence: Presence) -> None:
        """The worker stops: nothing new from now on, and what it did not start goes back."""
        self._claiming("leave", gpu=gpu, instance=presence.instance, phase="closing")

    def leave(self, gpu: str, presence: Presence) -> None:
        """The worker has stopped: the GPU is offline, and what still ran goes back."""
        self._claiming("leave", gpu=gpu, instance=presence.instance, phase="gone")
