# Two images: `runtime` has this package and what it needs; `example`, the last, adds a project, and is what
# docker-compose.yml runs. For a project of yours: COPY its requirements.txt (with celery-gpulease[prometheus] in it) in
# the first stage in place of our sources, and its code in the last.

FROM python:3.12-slim AS build
COPY pyproject.toml README.md LICENSE /src/
COPY celery_gpulease /src/celery_gpulease
# An environment without pip, which the final image copies: no build tool and no cache is left in it.
RUN python -m venv --without-pip /venv \
 && pip --python /venv/bin/python install --no-cache-dir "/src[prometheus]"

FROM python:3.12-slim AS runtime
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
# A number, by which Kubernetes' runAsNonRoot can tell that it is not root.
RUN useradd --system --uid 10001 celery
USER 10001

FROM runtime AS example
COPY examples/basic /proj
WORKDIR /proj
CMD ["celery", "-A", "proj", "worker", "--gpu", "0", "-l", "info"]
