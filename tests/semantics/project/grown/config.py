"""Settings as they pile up."""

import os

from kombu import Exchange, Queue

broker_url = result_backend = os.environ["GROWN_URL"]
broker_connection_retry_on_startup = True
broker_transport_options = {
    "global_keyprefix": "site:",
    "priority_steps": list(range(10)),
    "queue_order_strategy": "priority",
    "visibility_timeout": 7200,
}
task_serializer = "pickle"
result_serializer = "pickle"
accept_content = ["pickle", "json", "yaml", "msgpack"]
task_compression = "gzip"
task_default_queue = "everything"
task_create_missing_queues = False
task_queues = (Queue("everything", Exchange("everything"), "everything"), Queue("mail", Exchange("mail"), "mail"))
task_routes = (
    {"grown.mail.*": {"queue": "mail"}},
    "grown.routers.by_hand",
    {"grown.render.tasks.rarely": {"priority": 5}},
)
task_annotations = {
    "grown.render.tasks.annotated": {"soft_time_limit": 50, "max_retries": 7},
    "*": {"on_bound_late": "yes"},
}
task_acks_late = True
task_reject_on_worker_lost = True
task_time_limit = 100
task_track_started = True
task_send_sent_event = True
task_cls = "grown.bases:ProjectTask"
result_extended = True
result_expires = 600
worker_prefetch_multiplier = 8
worker_send_task_events = True
worker_hijack_root_logger = False
beat_schedule = {"often": {"task": "grown.render.tasks.add", "schedule": 3600, "args": (1, 1)}}
timezone = "Asia/Tokyo"
