"""Does a living worker serve this GPU? A health check that costs three questions to Redis, and does not import Celery.

    python healthy.py node7:0    # or a UUID, or 0 on its own host
    python healthy.py --alive 0  # only whether it lives, which one that stops still does. Where Redis cannot be asked
                                 # it is taken to live: for checks that kill

A worker says with each heartbeat that it is there, in a key that ends without it, and it listens to a channel for as
long as it takes work.
"""

import os
import socket
import sys

from redis import Redis, RedisError

*options, name = sys.argv[1:]
is_alive_enough = options == ["--alive"]
if name.isdigit():
    name = f"{os.environ.get('GPULEASE_HOST') or socket.gethostname()}:{name}"
client = Redis.from_url(os.environ["REDIS_URL"], socket_timeout=3, decode_responses=True)
try:
    gpu = client.hget("gpu:names", name) or name  # by NVML's word its id may be another
    is_present = client.exists(f"gpu:worker:{gpu}")
    ((_, listeners),) = client.pubsub_numsub(f"gpu:here:{gpu}")
except RedisError as error:
    sys.exit(0 if is_alive_enough else f"{name}: {error}")
sys.exit(0 if is_present and (listeners or is_alive_enough) else f"{name}: no living worker")
