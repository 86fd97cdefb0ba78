-- A GPU's own worker takes work for it. A claim of its own that nobody started yet is its claim: safe to repeat.
-- KEYS: prefix
-- ARGV: gpu seed route
-- Returns: {'claimed', ticket} | {'idle'} | {'closed', reason, ms until the lease ends, or -1: no TTL, -2: no lease}
-- include: claim
local gpu, seed, route = unpack(ARGV)
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'state', 'token')

if claim[2] == 'claimed' and redis.call('GET', key('lease', gpu)) == claim[3] then
  return { 'claimed', claim[1] }
end
local word, ticket = claim_next(gpu, true, seed, route)
if word == 'closed' then
  return { 'closed', why_closed(gpu) or 'leased', redis.call('PTTL', key('lease', gpu)) }
end
return { word, ticket }
