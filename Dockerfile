# The package, and examples/basic as the project that uses it: what docker-compose.yml runs.
FROM python:3.12-slim

COPY pyproject.toml README.md LICENSE /src/
COPY celery_gpulease /src/celery_gpulease
RUN pip install --no-cache-dir /src

COPY examples/basic /proj
WORKDIR /proj
RUN useradd celery
USER celery
ENV PYTHONUNBUFFERED=1
CMD ["celery", "-A", "proj", "worker", "--gpu", "0", "-l", "info"]
