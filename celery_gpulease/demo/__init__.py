"""`python -m celery_gpulease.demo`: leased GPUs at work, one worker killed, and a judgement of what happened."""
