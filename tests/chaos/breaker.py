"""Who breaks things: every fault that loses nothing by design, one after the other, some while another lasts."""

from contextlib import ExitStack, suppress

import psutil

from tests.chaos.actor import Spontaneous
from tests.faults.faults import Fault
from tests.faults.memory import memory_root

#: These lose accepted tasks, or results, by design; their own tests say what is left. With sentinels that is whatever
#: the master had not replicated yet.
LOSING = (
    "REDIS_FORGETS", "REDIS_FLUSHED", "REDIS_SWAPPED", "REDIS_EVICTS", "MASTER",
)  # fmt: skip
#: These end in a step back, by as much as tasks that wait for their rate limit or after deaths may be late.
LATE = ("CLOCK_FORWARD", "CLOCK_BACK")
LOSING_NOTHING = [fault for fault in Fault if not fault.name.startswith(LOSING + LATE)]


def wanting(world):
    """Faults by the beginning of their names, and is there what they break?"""
    return {
        "RABBITMQ": world.rabbitmq is not None,
        "CLOCK": world.clock is not None,
        "CHILDREN_OUT_OF_MEMORY": memory_root() is not None,
    }


def left_out(world):
    """What cannot be broken here although the machine is all that it needs, in words."""
    if not wanting(world)["CHILDREN_OUT_OF_MEMORY"]:
        yield "CHILDREN_OUT_OF_MEMORY is left out: this user may not make control groups that limit memory"


class Breaker(Spontaneous):
    """Breaks something for a while."""

    def __init__(self, chaos, every):
        super().__init__(chaos, "breaker", every)
        missing = tuple(beginning for beginning, is_there in wanting(chaos.world).items() if not is_there)
        self._faults = [fault for fault in LOSING_NOTHING if not fault.name.startswith(missing)]
        self._of_processes = [one for one in self._faults if one.name.startswith(("PROCESS", "CHILDREN", "WORKER"))]

    def act(self):
        """One fault, or two at a time."""
        faults = [self.chance.choice(self._faults)]
        if self.chance.random() < 0.3 and faults[0] not in self._of_processes:
            faults.append(self.chance.choice(self._of_processes))
        seconds = self.chance.choice((0.1, 1.0, 2.5, 5.0))  # shorter and longer than a lease
        gone = (ProcessLookupError, psutil.NoSuchProcess)  # it has just ended by itself
        with suppress(*gone), self.chaos.trouble(), ExitStack() as lasting:
            for fault in faults:
                self._break(fault, lasting)
            self._is_over.wait(seconds)
        self.say(f"mended, after {seconds} s")

    def _break(self, fault, lasting):
        victims = [self.chaos.crew.victim(self.chance)] if fault in self._of_processes else []
        self.say(" ".join([fault.name, *(worker.name for worker in victims if worker)]))
        self.chaos.count(f"faults: {fault.name}")
        if None in victims:
            return
        if fault.is_blow:
            fault.hit(self.chaos.world, *victims)
        else:
            lasting.enter_context(fault.during(self.chaos.world, *victims))
