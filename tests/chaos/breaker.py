"""Who breaks things: every fault that loses nothing by design, one after the other, some while another lasts."""

from contextlib import ExitStack

from tests.chaos.actor import Spontaneous
from tests.faults.faults import Fault

#: These lose accepted tasks, or results, by design; their own tests say what is left.
LOSING = {"REDIS_FORGETS", "REDIS_FLUSHED", "REDIS_SWAPPED", "REDIS_SWAPPED_BACK", "REDIS_EVICTS"}
FAULTS = [fault for fault in Fault if fault.name not in LOSING and not fault.name.startswith("RABBITMQ")]
PROCESSES = [fault for fault in FAULTS if fault.name.split("_")[0] in ("MAIN", "CHILD", "COMPANION", "WORKER")]


class Breaker(Spontaneous):
    """Breaks something for a while."""

    def __init__(self, chaos, every):
        super().__init__(chaos, "breaker", every)

    def act(self):
        """One fault, or two at a time."""
        faults = [self.chance.choice(FAULTS)]
        if self.chance.random() < 0.3 and faults[0] not in PROCESSES:
            faults.append(self.chance.choice(PROCESSES))
        seconds = self.chance.choice((0.1, 1.0, 2.5, 5.0))  # shorter and longer than a lease
        with ExitStack() as lasting, self.chaos.trouble():
            for fault in faults:
                self.say(f"{fault.name}, for {seconds} s")
                self.chaos.count(f"faults: {fault.name}")
                lasting.enter_context(fault.during(self.chaos.world))
            self._is_over.wait(seconds)
        self.say("mended")
