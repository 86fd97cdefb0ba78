"""Keeps the GPU busy: many films at once, each printed when it is ready."""

from proj import render

for film in [render.delay(f"{number}.blend") for number in range(10)]:
    print("{scene} on {gpu} from {began:.3f} to {ended:.3f}".format_map(film.get(timeout=120)), flush=True)
