"""pytest-celery's fixtures, for two GPUs: in containers, and in plain processes, with Redis and with RabbitMQ.

Its plugin, which is called `celery`, and the one under it are blocked (pyproject.toml): they would replace Celery's own
fixture `celery_worker` for all tests, and import Docker's client. Only here are their fixtures imported, and redefined
where ours are others.

A parameter of `docker_client` is the mode: a real daemon, or `daemon.Daemon`, which knows no Docker.
"""

import os
from contextlib import closing
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException
from pytest_celery import *  # noqa: F403  fixtures, which pytest finds by their names in here
from pytest_celery import CeleryTestWorker, CeleryWorkerCluster, defaults
from pytest_docker_tools import build, container, fxtr
from pytest_docker_tools.plugin import pytest_runtest_makereport  # noqa: F401  a failed test shows its containers' logs

from celery_gpulease import GPULease
from celery_gpulease.embedded import HOST as LOOPBACK
from celery_gpulease.embedded import free_port
from tests.rabbitmq import is_installed
from tests.smoke.containers import GPUWorkerContainer
from tests.smoke.daemon import Daemon
from tests.smoke.stage import Stage

ROOT = Path(__file__).parents[2]
PING_SECONDS, BUILD_SECONDS, START_SECONDS = 5, 600, 120
CONF = {
    "gpulease_lease_ttl": 5.0,
    "gpulease_heartbeat_interval": 1.0,
    "gpulease_reconcile_interval": 2.0,
    "broker_connection_retry_on_startup": True,
}


def pytest_configure(config):
    config.option.reuse_containers = False  # an option of the plugin that is blocked


@pytest.fixture(scope="session")
def real_docker():
    """Docker's client. Without a daemon a test that needs one is skipped, or fails where `REQUIRE_DOCKER` is set."""
    try:
        with closing(docker.from_env(timeout=PING_SECONDS)) as client:
            client.ping()
    except (DockerException, OSError) as error:
        without = pytest.fail if os.environ.get("REQUIRE_DOCKER") else pytest.skip
        without(f"no Docker daemon answers: {error}")
    with closing(docker.from_env(timeout=BUILD_SECONDS)) as client:  # a build may say nothing for long
        yield client


@pytest.fixture(scope="session", params=[pytest.param("docker", marks=pytest.mark.docker), "processes"])
def docker_client(request, tmp_path_factory):
    """Where images, networks, volumes and containers come from."""
    if request.param == "docker":
        yield request.getfixturevalue("real_docker")
    else:
        with Daemon(tmp_path_factory.mktemp("daemon")) as daemon:
            yield daemon


@pytest.fixture(params=["redis", "rabbitmq"])
def celery_broker(request, docker_client):
    """The broker. Leases live in it where it is Redis, else in the result backend."""
    if request.param == "rabbitmq" and isinstance(docker_client, Daemon) and not is_installed():
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("no RabbitMQ is installed: apt-get install rabbitmq-server")
    broker = request.getfixturevalue(f"celery_{request.param}_broker")
    yield broker
    broker.teardown()


@pytest.fixture
def celery_backend(celery_redis_backend):
    return celery_redis_backend


@pytest.fixture
def default_redis_broker_image():
    return "redis:7"  # that of docker-compose.yml


@pytest.fixture
def default_redis_backend_image(default_redis_broker_image):
    return default_redis_broker_image


@pytest.fixture
def default_rabbitmq_broker_image():
    return "rabbitmq:3"


@pytest.fixture
def default_redis_broker_command(default_redis_broker_cls):
    return default_redis_broker_cls.command("--appendonly", "yes")  # it is restarted


@pytest.fixture
def default_redis_broker_ports():
    return {"6379/tcp": (LOOPBACK, free_port())}  # the same again when it is restarted


@pytest.fixture
def default_redis_backend_ports():
    return {"6379/tcp": (LOOPBACK, free_port())}


@pytest.fixture
def default_rabbitmq_broker_ports():
    return {"5672/tcp": (LOOPBACK, free_port())}


gpu_worker_image = build(path=str(ROOT), target="runtime", tag="celery-gpulease-smoke")


def gpu_worker(index):
    """The container of one GPU's worker."""
    return container(
        image="{gpu_worker_image.id}",
        command=GPUWorkerContainer.command("--gpu", str(index)),
        environment=fxtr("default_worker_env"),
        network="{default_pytest_celery_network.name}",
        volumes={"{default_worker_volume.name}": defaults.DEFAULT_WORKER_VOLUME},
        working_dir=defaults.DEFAULT_WORKER_VOLUME["bind"],
        wrapper_class=GPUWorkerContainer,
        timeout=START_SECONDS,
    )


gpu0_container, gpu1_container = gpu_worker(0), gpu_worker(1)


@pytest.fixture
def default_worker_container_cls():
    return GPUWorkerContainer


@pytest.fixture
def default_worker_app(celery_setup_app):
    """The sender's app; the workers' has the same settings."""
    celery_setup_app.conf.update(CONF)
    GPULease(celery_setup_app)
    return celery_setup_app


@pytest.fixture
def celery_worker_cluster(gpu0_container, gpu1_container, default_worker_app):
    cluster = CeleryWorkerCluster(
        CeleryTestWorker(gpu0_container, app=default_worker_app),
        CeleryTestWorker(gpu1_container, app=default_worker_app),
    )
    yield cluster
    cluster.teardown()


@pytest.fixture
def stage(celery_setup):
    return Stage(celery_setup)
