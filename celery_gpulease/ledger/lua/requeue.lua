-- A run or a claim is over without an end: its ticket goes back to its old place, or to its end when it died too often.
-- KEYS: prefix
-- ARGV: gpu ticket token why counted wanted seed
-- Returns: {'pending' | 'scheduled' | 'claimed' | 'ending' | 'ended' | 'stale'}
-- include: dispatch
local gpu, ticket, token, why, counted, wanted, seed = unpack(ARGV)
local t = redis.call('HMGET', key('ticket', ticket), 'state', 'token', 'superseded')

if t[2] ~= token then
  drop_claim(gpu, token)
  mark_free_if_claimable(gpu)
  return { 'stale' }
end
if t[1] ~= 'claimed' then
  redis.call('HDEL', key('ticket', ticket), 'last_run') -- it is over: a late RENEW or RELEASE of it changes nothing
end
if wanted == '1' then
  -- no end of this run, or of one before it, counts
  redis.call('HSET', key('ticket', ticket), 'disowned', redis.call('HGET', key('ticket', ticket), 'runs') or 0)
  redis.call('HDEL', key('ticket', ticket), 'first_run_ms')
end
if t[1] ~= 'claimed' and (counted == '1' or t[3]) then
  return_died(ticket, gpu, why)
else
  back_to_place(ticket, gpu, why, false)
end
drop_claim(gpu, token)
mark_free_if_claimable(gpu)
dispatch_ticket(ticket, seed)
return { redis.call('HGET', key('ticket', ticket), 'state') or 'ended' }
