-- The holder gives its GPU back early and runs on without it: its tail. Safe to repeat.
-- KEYS: prefix
-- ARGV: gpu ticket token
-- Returns: {'tail' | 'stale'}
-- include: gpu
local gpu, ticket, token = unpack(ARGV)
local t = redis.call('HMGET', key('ticket', ticket), 'state', 'token')

if t[2] ~= token or (t[1] ~= 'started' and t[1] ~= 'tail') then
  return { 'stale' }
end
if t[1] == 'started' then
  redis.call('ZREM', DEADLINES, gpu) -- a full server allows this write, and with it all that follow
  redis.call('HSET', key('ticket', ticket), 'state', 'tail', 'why', 'early')
  redis.call('HSET', key('claim', gpu), 'state', 'tail')
  note('given_back', ticket, gpu, '')
end
if redis.call('GET', key('lease', gpu)) == token then
  redis.call('DEL', key('lease', gpu))
end
return { 'tail' }
