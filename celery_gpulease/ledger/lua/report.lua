-- The worker says that it lives and what it runs: a quarantine may end, a lost claim is routed once more.
-- KEYS: prefix
-- ARGV: gpu instance presence running_token grace_ms seed
-- Returns: {'present' | 'closing' | 'rerouted' | 'unregistered'} | {'taken', presence of the other}
-- include: gpu pulse
local gpu, instance, presence, running_token, grace_ms, seed = unpack(ARGV)
local other = redis.call('GET', key('worker', gpu))

if other and not string.find(other, instance, 1, true) then
  return { 'taken', other }
end
if not is_registered(gpu) then
  return { 'unregistered' }
end
redis.call('SET', key('worker', gpu), presence, 'PX', ttl_ms_of(gpu))
redis.call('HSET', key('device', gpu), 'running', running_token, 'reported_ms', NOW, 'presence', presence)
if not other then
  redis.call('HDEL', key('device', gpu), 'is_offline') -- it was only cut off
end
beat_pulse(gpu)

local closed = redis.call('HMGET', key('closed', gpu), 'quarantine', 'until_ms', 'left', 'closing')
local word = closed[4] and 'closing' or 'present'
if running_token ~= '' or (not closed[1] and redis.call('EXISTS', key('claim', gpu)) == 0) then
  return { word }
end
-- include: claim quarantine
if closed[1] and not closed[3] and is_over(tonumber(closed[2]) or 0) then
  end_quarantine(gpu, 'its time is over')
  claim_next(gpu, false, seed)
end
local claim = redis.call('HMGET', key('claim', gpu), 'state', 'token', 'claimed_ms')
if claim[1] == 'claimed' and NOW - tonumber(claim[3]) >= tonumber(grace_ms)
    and redis.call('GET', key('lease', gpu)) == claim[2] and redis.call('LLEN', route_to(gpu)) == 0 then
  local message = routed_message(gpu)
  if message then
    redis.call('LPUSH', route_to(gpu), message) -- the pop was lost: START takes it once
    note('rerouted', redis.call('HGET', key('claim', gpu), 'ticket'), gpu, '')
    return { 'rerouted' }
  end
end
return { word }
