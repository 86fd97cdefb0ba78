"""Trains a network, and uses it twice."""

from tasks import classify, train

training = train.delay(100).get(timeout=300)
print("trained from step {from_step} to {to_step} on {where}: loss {loss:.3f}".format_map(training))
for seed in (1, 2):
    answer = classify.delay(training, seed).get(timeout=300)
    print("{right:.0%} right on {where}; loaded before: {was_loaded}".format_map(answer))
