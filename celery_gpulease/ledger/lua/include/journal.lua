-- include: keys
-- What happened to whom: a capped stream for people, totals for metrics.
local task_ids = {}

-- '' where the ticket is gone; else it never changes, and is read once in a call.
local function task_id_of(ticket)
  task_ids[ticket] = task_ids[ticket] or redis.call('HGET', key('ticket', ticket), 'task_id') or ''
  return task_ids[ticket]
end

local function note(what, ticket, gpu, detail)
  redis.call('XADD', JOURNAL, 'MAXLEN', '~', 10000, '*', 'what', what, 'ticket', ticket, 'task_id', task_id_of(ticket),
    'gpu', gpu or '', 'detail', detail or '')
  redis.call('HINCRBY', COUNTERS, what, 1)
end
