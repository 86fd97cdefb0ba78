"""Every setting is read and checked in one place, and a wrong one is named with its cure."""

import traceback

import pytest
from celery import Celery

from celery_gpulease.exceptions import ConfigurationError
from celery_gpulease.servers import redis_urls
from celery_gpulease.settings import read_settings


def settings_of(*, environ=None, broker="redis://one:6379/3", backend=None, **conf):
    app = Celery("x", broker=broker, backend=backend)
    app.conf.update({f"gpulease_{name}": value for name, value in conf.items()})
    return read_settings(app.conf, environ or {})


def test_the_defaults_are_the_contracts():
    settings = settings_of(host="node7")
    assert (settings.key_prefix, settings.lease_ttl, settings.heartbeat_interval) == ("gpu:", 30.0, 10.0)
    assert (settings.reconcile_interval, settings.max_deliveries, settings.notifications) == (30.0, 3, "auto")
    assert (settings.on_lease_lost, settings.track_held, settings.metrics_port) == ("terminate", False, None)


def test_the_heartbeat_is_a_third_of_the_ttl_unless_it_is_set():
    assert settings_of(lease_ttl=9).heartbeat_interval == 3.0
    assert settings_of(lease_ttl=9, heartbeat_interval=4.5).heartbeat_interval == 4.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_ttl", 0),
        ("lease_ttl", "30"),
        ("lease_ttl", True),
        ("lease_ttl", float("nan")),
        ("heartbeat_interval", 15.1),
        ("heartbeat_interval", -1),
        ("reconcile_interval", None.__class__),
        ("max_deliveries", 0),
        ("max_deliveries", 2.5),
        ("max_deliveries", True),
        ("notifications", "on"),
        ("notifications", True),
        ("on_lease_lost", "kill"),
        ("key_prefix", "gpu"),
        ("key_prefix", "g pu:"),
        ("key_prefix", "gpu*:"),
        ("redis_url", "http://one"),
        ("redis_url", ""),
        ("redis_options", "master"),
        ("track_held", "yes"),
        ("metrics_port", 70000),
        ("host", "no de"),
    ],
)
def test_a_wrong_value_is_refused_by_the_settings_name(name, value):
    with pytest.raises(ConfigurationError, match=f"gpulease_{name}"):
        settings_of(**{name: value})


SECRET = "Sesame42"


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"redis_url": f"redsi://:{SECRET}@one"}, "gpulease_redis_url"),
        ({"redis_url": f"redis://user:{SECRET}/x@one:6379/0"}, "gpulease_redis_url.*%2F"),
        ({"redis_url": f"sentinel://one:1/0;sentinel://:{SECRET}#x@two:2/0"}, "gpulease_redis_url.*%23"),
        ({"redis_options": f"{{'password': '{SECRET}'}}"}, "gpulease_redis_options"),
        ({"broker": f"redis://user:{SECRET}?x@one:6379/0"}, "broker_url.*%3F"),
        ({"broker": "amqp://x", "backend": f"redis://user:{SECRET}/x@one:6379/0"}, "result_backend"),
    ],
)
def test_an_error_names_the_setting_and_shows_no_password(conf, named):
    with pytest.raises(ConfigurationError, match=named) as refused:
        settings_of(**conf)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_settings_show_no_password():
    shown = repr(settings_of(redis_options={"password": SECRET}, broker=f"redis://:{SECRET}@one"))
    assert "gpu:" in shown
    assert SECRET not in shown


def test_a_password_in_our_url_is_pointed_out_since_celery_shows_it():
    with pytest.warns(UserWarning, match="gpulease_redis_options = {'password'"):
        assert settings_of(redis_url=f"redis://:{SECRET}@one").redis_url.endswith("@one")


@pytest.mark.parametrize(("scheme", "ssl"), [("redis", {}), ("rediss", {"ssl_cert_reqs": "none"})])
def test_a_broker_that_is_told_what_to_check_warns_of_nothing(scheme, ssl, recwarn):
    app = Celery("x", broker=f"{scheme}://one", broker_use_ssl=ssl)
    assert read_settings(app.conf, {}).redis_options == ssl
    assert list(recwarn) == []


def test_a_brokers_unchecked_certificate_is_pointed_out():
    with pytest.warns(UserWarning, match=r"broker_use_ssl = {'ssl_cert_reqs': ssl.CERT_REQUIRED"):
        settings_of(broker="rediss://one")


def test_the_brokers_sentinel_and_tls_are_the_ledgers_too_and_our_own_options_win():
    ssl = {"ssl_ca_certs": "/ca.pem"}
    told = {"master_name": "m", "sentinel_kwargs": {"password": "p"}, "visibility_timeout": 5}
    app = Celery("x", broker="sentinel://a:1;sentinel://b:2", broker_transport_options=told, broker_use_ssl=ssl)
    expected = {"master_name": "m", "sentinel_kwargs": {"password": "p"}, **ssl}
    assert read_settings(app.conf, {}).redis_options == expected
    app.conf.gpulease_redis_options = {"master_name": "other"}
    assert read_settings(app.conf, {}).redis_options == {**expected, "master_name": "other"}
    app.conf.gpulease_redis_url = "sentinel://a:1;sentinel://b:2"  # the same once more
    assert read_settings(app.conf, {}).redis_options == {**expected, "master_name": "other"}
    app.conf.gpulease_redis_url = "redis://c"
    assert read_settings(app.conf, {}).redis_options == {"master_name": "other"}


def test_an_unknown_setting_is_refused_with_the_one_that_was_meant():
    with pytest.raises(ConfigurationError, match=r"gpulease_lease_tll is no setting.*did you mean gpulease_lease_ttl"):
        settings_of(lease_tll=5)


def test_djangos_namespace_works():
    app = Celery("x", broker="redis://one")
    app.config_from_object(type("Conf", (), {"CELERY_GPULEASE_LEASE_TTL": 7}), namespace="CELERY")
    assert read_settings(app.conf, {}).lease_ttl == 7.0
    app = Celery("x", broker="redis://one")
    app.config_from_object(type("Conf", (), {"CELERY_GPULEASE_LEASE_TLL": 7}), namespace="CELERY")
    with pytest.raises(ConfigurationError, match="gpulease_lease_ttl"):
        read_settings(app.conf, {})


@pytest.mark.parametrize("key", ["GPULEASE_LEASE_TTL", "CELERY_GPULEASE_LEASE_TTL"])
def test_a_setting_that_celery_would_not_read_is_refused_with_its_right_spelling(key):
    app = Celery("x", broker="redis://one")
    app.config_from_object({"broker_url": "redis://one", key: 7})
    with pytest.raises(ConfigurationError, match=f"{key} is not read.*write gpulease_lease_ttl"):
        read_settings(app.conf, {})


def test_a_setting_outside_djangos_namespace_is_refused_with_its_right_spelling():
    app = Celery("x", broker="redis://one")
    app.config_from_object(type("Conf", (), {"GPULEASE_LEASE_TTL": 7}), namespace="CELERY")
    with pytest.raises(ConfigurationError, match=r"GPULEASE_LEASE_TTL is not read.*write CELERY_GPULEASE_LEASE_TTL"):
        read_settings(app.conf, {})


def test_the_environment_names_the_host_before_the_setting():
    assert settings_of(host="a").host == "a"
    assert settings_of(host="a", environ={"GPULEASE_HOST": "b"}).host == "b"


def test_leases_live_where_the_broker_is_else_where_results_are():
    assert settings_of().redis_url == "redis://one:6379/3"
    assert settings_of(broker="amqp://x", backend="redis://two").redis_url == "redis://two"
    with pytest.raises(
        ConfigurationError, match="gpulease_redis_url: neither the broker nor the result backend is Redis"
    ):
        settings_of(broker="amqp://x", backend="rpc://")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://a;redis://b", ["redis://a", "redis://b"]),
        (["rediss://a"], ["rediss://a"]),
        ("sentinel://a:1;sentinel://b:2", ["sentinel://a:1;sentinel://b:2"]),
        ("redis+socket:///run/r.sock?virtual_host=2", ["unix:///run/r.sock?db=2"]),
        ("rediss://a?ssl_cert_reqs=CERT_REQUIRED", ["rediss://a?ssl_cert_reqs=required"]),
        ([], []),
        ("amqp://x", []),
        (None, []),
    ],
)
def test_celerys_ways_to_write_a_redis_url_are_understood(url, expected):
    assert redis_urls(url) == expected
