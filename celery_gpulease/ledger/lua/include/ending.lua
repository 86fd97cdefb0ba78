-- include: ticket
-- An end is handed to one writer at a time: for 30 s nobody else gets it. After 10 tries it is given up.
local TRY_EVERY_MS, TRIES = 30000, 10

-- Replies {'end', ticket, task_id, task, why, deliveries, first_run_ms, message} | {'gave_up' | 'vanished', ticket}.
local function hand_out(ticket)
  local message = redis.call('GET', key('message', ticket))
  if not message then -- nobody can write its end
    note('vanished', ticket, '', 'its message is gone')
    redis.call('ZREM', ENDING, ticket)
    end_ticket(ticket)
    return { 'vanished', ticket }
  end
  local t = redis.call('HMGET', key('ticket', ticket), 'task_id', 'task', 'why', 'deliveries', 'first_run_ms')
  if redis.call('HINCRBY', key('ticket', ticket), 'attempts', 1) > TRIES then
    note('gave_up', ticket, '', t[3])
    redis.call('ZREM', ENDING, ticket)
    end_ticket(ticket)
    return { 'gave_up', ticket }
  end
  redis.call('ZADD', ENDING, NOW + TRY_EVERY_MS, ticket)
  return { 'end', ticket, t[1], t[2], t[3], t[4], t[5] or 0, message }
end
