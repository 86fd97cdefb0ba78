-- A claim that its worker may not start yet (a rate limit): the ticket waits in the schedule, and the GPU is free.
-- KEYS: prefix
-- ARGV: gpu ticket token delay_ms
-- Returns: {'scheduled' | 'stale'}
-- include: gpu line
local gpu, ticket, token, delay_ms = unpack(ARGV)
local name = key('ticket', ticket)
local t = redis.call('HMGET', name, 'state', 'token')

if t[1] ~= 'claimed' or t[2] ~= token then
  return { 'stale' }
end
put_in_schedule(ticket, NOW + delay_ms)
redis.call('HINCRBY', name, 'deliveries', -1)
redis.call('HDEL', name, 'gpu', 'token')
note('deferred', ticket, gpu, '')
drop_claim(gpu, token)
mark_free_if_claimable(gpu)
return { 'scheduled' }
