-- Gives a free GPU its next task, whoever asks: the reconciler, for an event that was missed.
-- KEYS: prefix
-- ARGV: gpu seed
-- Returns: {'claimed' | 'idle' | 'closed'}
-- include: claim
local gpu, seed = unpack(ARGV)
local word = claim_next(gpu, false, seed)
return { word }
