-- include: keys
-- What happened to whom: a capped stream for people, totals for metrics.
-- `task_id`: the ticket's, where it is known.
local function note(what, ticket, gpu, detail, task_id)
  task_id = task_id or redis.call('HGET', key('ticket', ticket), 'task_id') or ''
  redis.call('XADD', JOURNAL, 'MAXLEN', '~', 10000, '*', 'what', what, 'ticket', ticket, 'task_id', task_id,
    'gpu', gpu or '', 'detail', detail or '')
  redis.call('HINCRBY', COUNTERS, what, 1)
end
