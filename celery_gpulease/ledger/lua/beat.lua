-- The usual heartbeat: a worker's one run is under way, its lease and its presence are there, and it says so.
-- Anything else changes nothing here: RENEW and REPORT, which this stands for, find out what it is.
-- KEYS: prefix
-- ARGV: gpu ticket token presence
-- Returns: {'present' | 'closing' | 'unusual'}
-- include: gpu pulse
local gpu, ticket, token, presence = unpack(ARGV)
local run = redis.call('HMGET', key('ticket', ticket), 'state', 'token')

if run[1] ~= 'started' or run[2] ~= token or redis.call('GET', key('lease', gpu)) ~= token
    or redis.call('GET', key('worker', gpu)) ~= presence or not is_registered(gpu) then
  return { 'unusual' }
end
prolong_lease(gpu)
redis.call('PEXPIRE', key('worker', gpu), ttl_ms_of(gpu))
redis.call('HSET', key('device', gpu), 'running', token, 'reported_ms', NOW, 'presence', presence)
beat_pulse(gpu)
return { redis.call('HEXISTS', key('closed', gpu), 'closing') == 1 and 'closing' or 'present' }
