-- Hands a ticket to whoever writes its end outside Redis; for 30 s nobody else gets it. After 10 tries it is given up.
-- KEYS: prefix
-- ARGV: ticket
-- Returns: {'end', ticket, task_id, task, why, deliveries, first_run_ms, how, message} | {'none'}
--   | {'gave_up' | 'vanished', ticket}
-- include: ticket
local TRY_EVERY_MS, TRIES = 30000, 10
local ticket = ARGV[1]

local function hand_out()
  local message = redis.call('GET', key('message', ticket))
  if not message then -- nobody can write its end
    note('vanished', ticket, '', 'its message is gone')
    redis.call('ZREM', ENDING, ticket)
    end_ticket(ticket)
    return { 'vanished', ticket }
  end
  local t = redis.call('HMGET', key('ticket', ticket), 'task_id', 'task', 'why', 'deliveries', 'first_run_ms',
    'how')
  if redis.call('HINCRBY', key('ticket', ticket), 'attempts', 1) > TRIES then
    note('gave_up', ticket, '', t[3])
    redis.call('ZREM', ENDING, ticket)
    end_ticket(ticket)
    return { 'gave_up', ticket }
  end
  redis.call('ZADD', ENDING, NOW + TRY_EVERY_MS, ticket)
  return { 'end', ticket, t[1], t[2], t[3], t[4] or 0, t[5] or 0, t[6] or '', message }
end

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
return hand_out()
