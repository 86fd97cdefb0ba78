"""Does this container's worker serve its GPU? For health checks: 0.1 s, where asking by Celery takes a second.

A worker says with each heartbeat that it is there, in a key that ends without it, and listens to a channel, as long as
its connection lasts.
"""

import os
import sys

from redis import Redis

gpu = sys.argv[1]
client = Redis.from_url(os.environ["REDIS_URL"], socket_timeout=3)
is_present = client.exists(f"gpu:worker:{gpu}")
((_, listeners),) = client.pubsub_numsub(f"gpu:here:{gpu}")
sys.exit(0 if is_present and listeners else f"{gpu}: no living worker")
