"""Who does something during a chaos: a thread with a random source of its own, so that a seed fixes what it decides."""

import threading
from random import Random


class Actor(threading.Thread):
    """Acts again and again.

    Attributes:
        error: What ended it before its time: then the chaos has failed.
    """

    def __init__(self, chaos, name, every):
        super().__init__(name=name, daemon=True)
        self.chaos, self.chance = chaos, Random(f"{chaos.seed}:{name}")
        self._every, self._is_over = every, threading.Event()
        self.error = None

    def act(self):
        """What it does."""
        raise NotImplementedError

    def pause(self):
        """Seconds until it acts again."""
        return self._every

    def run(self):
        """Until it is stopped."""
        try:
            while not self._is_over.wait(self.pause()):
                self.act()
        except BaseException as error:
            self.error = error
            raise

    def stop(self):
        """Ends it, after what it is at."""
        self._is_over.set()
        self.join()

    def say(self, words):
        """A line in the log of the chaos."""
        self.chaos.say(f"{self.name}: {words}")


class Spontaneous(Actor):
    """Acts at random moments, `every` so many seconds on average."""

    def pause(self):
        """As a Poisson process."""
        return self.chance.expovariate(1 / self._every)
