"""The worker of a GPU as pytest-celery's container, and where every container is found."""

from types import ModuleType
from typing import Any

from pytest_celery import CeleryTestContainer, CeleryWorkerContainer

from celery_gpulease.embedded import HOST as LOOPBACK
from tests.smoke import tasks, worker_app

#: Names the GPUs: a container's own name would be another in each test.
HOST = "node7"


class GPUWorkerContainer(CeleryWorkerContainer):
    """`celery worker --gpu`: a node's name and its queues follow from the GPU."""

    @classmethod
    def command(cls, *args: str, **_: Any) -> list[str]:
        """The command of the worker, with these options."""
        return ["celery", "-A", "app", "worker", f"--loglevel={cls.log_level()}", *args]

    @classmethod
    def initial_env(cls, celery_worker_cluster_config: dict, initial: dict | None = None) -> dict:
        """Beside what pytest-celery sets: URLs of broker and backend, and the path."""
        return super().initial_env(celery_worker_cluster_config, {"GPULEASE_HOST": HOST, **(initial or {})})

    @classmethod
    def app_module(cls) -> ModuleType:
        """With one line more than pytest-celery's own."""
        return worker_app

    @classmethod
    def tasks_modules(cls) -> set[ModuleType]:
        """Copied, and imported by the app."""
        return {tasks}


def address(container: CeleryTestContainer, port: str) -> tuple[str, int]:
    """Where this machine reaches a container's port: where it is published, or where a plain process listens.

    pytest_docker_tools would look for a file that a machine made from a container image has as well, take the tests to
    be inside a container, and give a port that is right only there.
    """
    return getattr(container._container, "address", None) or (LOOPBACK, container.ports[port][0])


CeleryTestContainer.get_addr = address
