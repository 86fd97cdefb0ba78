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
if not ticket or not redis.call('ZSCORE', ENDING, ticket) then
  return { 'none' }
elseif has_vanished(ticket) or redis.call('HGET', key('ticket', ticket), 'state') ~= 'ending' then
  redis.call('ZREM', ENDING, ticket)
  return { 'vanished', ticket }
end
return hand_out(ticket)
