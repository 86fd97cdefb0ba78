"""Who breaks things: every fault that loses nothing by design, one after the other, some while another lasts."""

from contextlib import ExitStack, suppress

import psutil

from tests.chaos.actor import Spontaneous
from tests.faults.faults import Fault

#: These lose accepted tasks, or results, by design; their own tests say what is left.
LOSING = {"REDIS_FORGETS", "REDIS_FLUSHED", "REDIS_SWAPPED", "REDIS_SWAPPED_BACK", "REDIS_EVICTS"}
#: These need what a chaos has not: a server with a clock of its own, control groups, RabbitMQ, sentinels.
ELSEWHERE = ("CLOCK", "CHILDREN_OUT_OF_MEMORY", "RABBITMQ", "MASTER")
FAULTS = [fault for fault in Fault if fault.name not in LOSING and not fault.name.startswith(ELSEWHERE)]
OF_PROCESSES = [fault for fault in FAULTS if fault.name.startswith(("PROCESS", "CHILDREN", "WORKER"))]


class Breaker(Spontaneous):
    """Breaks something for a while."""

    def __init__(self, chaos, every):
        super().__init__(chaos, "breaker", every)

    def act(self):
        """One fault, or two at a time."""
        faults = [self.chance.choice(FAULTS)]
        if self.chance.random() < 0.3 and faults[0] not in OF_PROCESSES:
            faults.append(self.chance.choice(OF_PROCESSES))
        seconds = self.chance.choice((0.1, 1.0, 2.5, 5.0))  # shorter and longer than a lease
        gone = (ProcessLookupError, psutil.NoSuchProcess)  # it has just ended by itself
        with suppress(*gone), self.chaos.trouble(), ExitStack() as lasting:
            for fault in faults:
                self._break(fault, lasting)
            self._is_over.wait(seconds)
        self.say(f"mended, after {seconds} s")

    def _break(self, fault, lasting):
        victims = [self.chaos.crew.victim(self.chance)] if fault in OF_PROCESSES else []
        self.say(" ".join([fault.name, *(worker.name for worker in victims if worker)]))
        self.chaos.count(f"faults: {fault.name}")
        if None in victims:
            return
        if fault.is_blow:
            fault.hit(self.chaos.world, *victims)
        else:
            lasting.enter_context(fault.during(self.chaos.world, *victims))
