-- The end outside Redis is written: the ticket ends here too. Safe to repeat.
-- KEYS: prefix
-- ARGV: ticket
-- Returns: {'ended' | 'stale'}
-- include: ticket
local ticket = ARGV[1]

if redis.call('HGET', key('ticket', ticket), 'state') ~= 'ending' then
  return { 'stale' }
end
note('ended', ticket, '', redis.call('HGET', key('ticket', ticket), 'why'))
redis.call('ZREM', ENDING, ticket)
end_ticket(ticket)
return { 'ended' }
