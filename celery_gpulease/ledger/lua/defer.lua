-- A claim that its worker may not start yet (a rate limit): the ticket waits in the schedule, and the GPU is free.
-- KEYS: prefix
-- ARGV: gpu ticket token delay_ms
-- Returns: {'scheduled' | 'stale'}
-- include: gpu line
local gpu, ticket, token, delay_ms = unpack(ARGV)
local name = key('ticket', ticket)
local t = redis.call('HMGET', name, 'state', 'token', 'pool', 'expires_ms')

if t[1] ~= 'claimed' or t[2] ~= token then
  return { 'stale' }
end
redis.call('ZADD', SCHEDULED, NOW + delay_ms, ticket)
redis.call('HINCRBY', SCHEDULED_COUNT, t[3], 1)
if tonumber(t[4]) > 0 then
  redis.call('ZADD', EXPIRING, t[4], ticket)
end
redis.call('HINCRBY', name, 'deliveries', -1)
redis.call('HSET', name, 'state', 'scheduled')
redis.call('HDEL', name, 'gpu', 'token')
note('deferred', ticket, gpu, '')
tell_if_next(ticket)
drop_claim(gpu, token)
mark_free_if_claimable(gpu)
return { 'scheduled' }
