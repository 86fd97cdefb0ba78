"""The worker of one GPU: its options, its bootsteps, and what becomes of each request."""
