-- Hands a ticket to whoever writes its end outside Redis; for 30 s nobody else gets it. After 10 tries it is given up.
-- KEYS: prefix
-- ARGV: ticket
-- Returns: {'end', ticket, task_id, task, why, deliveries, message} | {'none'} | {'gave_up' | 'vanished', ticket}
-- include: ticket
local ticket = ARGV[1]
local TRY_EVERY_MS, TRIES = 30000, 10

if ticket == '' then
  ticket = redis.call('ZRANGEBYSCORE', ENDING, '-inf', NOW, 'LIMIT', 0, 1)[1]
end
if not ticket or not redis.call('ZSCORE', ENDING, ticket) then
  return { 'none' }
elseif has_vanished(ticket) or redis.call('HGET', key('ticket', ticket), 'state') ~= 'ending' then
  redis.call('ZREM', ENDING, ticket)
  return { 'vanished', ticket }
end
local message = redis.call('GET', key('message', ticket))
if not message then -- nobody can write its end
  note('vanished', ticket, '', 'its message is gone')
  redis.call('ZREM', ENDING, ticket)
  end_ticket(ticket)
  return { 'vanished', ticket }
end
local t = redis.call('HMGET', key('ticket', ticket), 'task_id', 'task', 'why', 'deliveries')
if redis.call('HINCRBY', key('ticket', ticket), 'attempts', 1) > TRIES then
  note('gave_up', ticket, '', t[3])
  redis.call('ZREM', ENDING, ticket)
  end_ticket(ticket)
  return { 'gave_up', ticket }
end
redis.call('ZADD', ENDING, NOW + TRY_EVERY_MS, ticket)
return { 'end', ticket, t[1], t[2], t[3], t[4], message }
