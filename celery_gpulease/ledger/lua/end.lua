-- Hands a ticket to whoever writes its end outside Redis; for 30 s nobody else gets it. After 10 tries it is given up.
-- KEYS: prefix
-- ARGV: ticket
-- Returns: {'end', ticket, task_id, task, why, deliveries, first_run_ms, message} | {'none'}
--   | {'gave_up' | 'vanished', ticket}
-- include: ending
local ticket = ARGV[1]

if ticket == '' then
  ticket = redis.call('ZRANGEBYSCORE', ENDING, '-inf', NOW, 'LIMIT', 0, 1)[1]
end
local due = ticket and tonumber(redis.call('ZSCORE', ENDING, ticket) or nil)
if not due or due > NOW then -- or another has it, or its run is not over
  return { 'none' }
elseif has_vanished(ticket) or redis.call('HGET', key('ticket', ticket), 'state') ~= 'ending' then
  redis.call('ZREM', ENDING, ticket)
  return { 'vanished', ticket }
end
return hand_out(ticket)
