"""Settings with which GPU tasks cannot work are refused by their names, with the cure."""

import pytest
from celery import Celery

from celery_gpulease import ConfigurationError, GPULease


def settings_of(**conf):
    app = Celery("x", broker="redis://one:6379/3", set_as_current=False)
    app.conf.update(conf)
    return GPULease(app).settings


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"broker_vhost": "5"}, "broker_vhost.*broker_url"),
        ({"broker_password": "secret"}, "broker_password.*broker_url"),
        ({"broker_transport_options": {"priority_steps": [1, 5, 9]}}, "priority_steps.*begin the steps with 0"),
        ({"broker_use_ssl": True}, "broker_use_ssl.*ssl_cert_reqs"),
        ({"result_backend": "redis://two", "redis_backend_use_ssl": True}, "redis_backend_use_ssl.*ssl_cert_reqs"),
        ({"broker_use_ssl": {"ca_certs": "/ca.pem"}}, "broker_use_ssl.*ssl_ca_certs"),
        ({"gpulease_redis_options": {"db": 5}}, "gpulease_redis_options: 'db'.*gpulease_redis_url"),
    ],
)
def test_a_contradiction_is_refused_by_its_name_and_with_its_cure(conf, named):
    with pytest.raises(ConfigurationError, match=named) as refused:
        settings_of(**conf)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"priority_steps": range(10), "queue_order_strategy": "priority"},
        {"global_keyprefix": "site:", "sep": ":", "visibility_timeout": 1},
    ],
)
def test_what_changes_nothing_for_gpu_tasks_is_accepted(options):
    assert settings_of(broker_transport_options=options).redis_url == "redis://one:6379/3"


def test_an_app_that_cannot_hold_gpu_tasks_says_so_when_it_is_set_up(caplog):
    app = Celery("x", broker="memory://", set_as_current=False)
    GPULease(app)
    app.finalize()
    (record,) = [one for one in caplog.records if one.name.startswith("celery_gpulease")]
    assert "GPU tasks cannot be held: gpulease_redis_url" in record.message
    assert record.exc_info is None
