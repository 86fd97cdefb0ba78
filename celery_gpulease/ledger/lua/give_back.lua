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
  run_on_without_lease(gpu, ticket, token, 'early')
  note('given_back', ticket, gpu, '')
end
return { 'tail' }
