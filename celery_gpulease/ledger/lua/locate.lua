-- Where a task is now: each of its tickets.
-- KEYS: prefix
-- ARGV: task_id
-- Returns: for each ticket {ticket, task, state, pool, pin, priority, position in its line or 0,
--   ms since it was held or due, ms until it is due or 0, deliveries, why, gpu or '',
--   ms since its claim or its start or 0}
-- include: ticket
local task_id = ARGV[1]
local found = {}

for _, ticket in ipairs(tickets_of(task_id)) do
  local t = redis.call('HMGET', key('ticket', ticket), 'task', 'state', 'pool', 'pin', 'priority', 'held_ms',
    'deliveries', 'why', 'gpu', 'eta_ms')
  local gpu = t[9] or ''
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'claimed_ms', 'started_ms')
  local since_ms = claim[1] == ticket and (claim[3] or claim[2])
  local rank = t[2] == 'pending' and redis.call('ZRANK', line_of(t[3], t[4]), ticket)
  local since = math.min(NOW, math.max(tonumber(t[6] or NOW), tonumber(t[10] or 0)))
  local due_ms = t[2] == 'scheduled' and redis.call('ZSCORE', SCHEDULED, ticket)
  found[#found + 1] = { ticket, t[1], t[2], t[3], t[4], t[5], rank and rank + 1 or 0, NOW - since,
    due_ms and math.max(0, due_ms - NOW) or 0, t[7] or 0, t[8] or '', gpu, since_ms and NOW - since_ms or 0 }
end
return found
