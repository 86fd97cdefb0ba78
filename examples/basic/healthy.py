"""Does a living worker serve this GPU? A health check that costs two questions to Redis, and does not import Celery.

A worker says with each heartbeat that it is there, in a key that ends without it, and it listens to a channel for as
long as it is connected.
"""

import os
import sys

from redis import Redis

gpu = sys.argv[1]
client = Redis.from_url(os.environ["REDIS_URL"], socket_timeout=3)
is_present = client.exists(f"gpu:worker:{gpu}")
((_, listeners),) = client.pubsub_numsub(f"gpu:here:{gpu}")
sys.exit(0 if is_present and listeners else f"{gpu}: no living worker")
