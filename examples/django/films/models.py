"""What is known of each film."""

from django.db import models


class Film(models.Model):
    """A film, and where it was rendered.

    The fence, which grows with every lease of a GPU, keeps a run that has lost its GPU from writing over a later one.
    """

    scene = models.CharField(max_length=200)
    frames = models.PositiveIntegerField(default=25)
    gpu = models.CharField(max_length=200, blank=True)
    fence = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.scene}: {f'rendered on {self.gpu}' if self.gpu else 'waits'}"
