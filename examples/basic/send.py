"""Sends tasks as any Celery program does, and prints their results."""

from celery import chord
from tasks import join, render

first = render.delay("a.blend")
urgent = render.apply_async(("b.blend",), priority=0)
patient = render.apply_async(("c.blend",), priority=5)
later = render.apply_async(("d.blend",), countdown=1)
for result in (first, urgent, patient, later):
    print(result.get(timeout=60))

films = chord([render.s(f"{name}.blend", frames=2) for name in "efg"], join.s())()
print(films.get(timeout=60))
