"""A project that has grown for years: the same with Celery's own task class, and with GPUTask in its place."""
