-- The end outside Redis cannot be written yet, and nothing is wrong: that try was none. Safe to repeat.
-- KEYS: prefix
-- ARGV: ticket
-- Returns: {'put_off' | 'stale'}
-- include: keys
local ticket = ARGV[1]

if redis.call('HGET', key('ticket', ticket), 'state') ~= 'ending' then
  return { 'stale' }
end
redis.call('HSET', key('ticket', ticket), 'attempts', 1)
return { 'put_off' }
