-- A worker is known to be dead: it is gone with that, and what it left is taken up, whatever is left of any ttl.
-- KEYS: prefix
-- ARGV: gpu dead seed
-- Returns: {'buried', ticket or ''} | {'none'}: another worker has come since, or somebody else was first
-- include: take_up offline
local gpu, dead, seed = unpack(ARGV)
local presence = redis.call('HGET', key('device', gpu), 'presence')

if not presence or not string.find(presence, dead, 1, true) then
  return { 'none' }
end
redis.call('DEL', key('worker', gpu)) -- first: a living worker that did not start its claim would be quarantined
mark_busy(gpu)
note_offline(gpu)
local ticket = take_up_from(dead, gpu, 'its worker died', seed)
redis.call('HDEL', key('device', gpu), 'presence') -- last: what stops half-way is done again
return { 'buried', ticket }
