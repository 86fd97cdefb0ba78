-- What is due enters its line, in due order; what has expired goes to its end. A bounded number each call.
-- KEYS: prefix
-- ARGV: seed route
-- Returns: {number promoted, number expired}
-- include: dispatch
local seed, route = unpack(ARGV)
local PER_CALL = 100

local expired = redis.call('ZRANGEBYSCORE', EXPIRING, '-inf', NOW, 'LIMIT', 0, PER_CALL)
for _, ticket in ipairs(expired) do
  take_out(ticket)
  mark_ending(ticket, 'expired')
end
local due = redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', NOW, 'LIMIT', 0, PER_CALL)
for _, ticket in ipairs(due) do
  take_out(ticket)
  put_in_line(ticket, tonumber(redis.call('HGET', key('ticket', ticket), 'score') or nil)) -- deferred: its old place
  note('promoted', ticket, '', '')
end
for _, ticket in ipairs(due) do
  dispatch_ticket(ticket, seed, route)
end
return { #due, #expired }
