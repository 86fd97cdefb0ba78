-- Gives a free GPU its next task, whoever asks: the reconciler, for an event that was missed.
-- KEYS: prefix
-- ARGV: gpu seed route
-- Returns: {'claimed' | 'idle' | 'closed'}
-- include: claim
local gpu, seed, route = unpack(ARGV)
local word = claim_next(gpu, false, seed, route)
return { word }
