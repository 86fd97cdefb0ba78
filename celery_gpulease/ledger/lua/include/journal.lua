-- include: keys
-- What happened to whom: a capped stream for people, totals for metrics.
local task_ids = {}

-- '' where the ticket is gone; else it never changes, and is read once in a call.
local function task_id_of(ticket)
  task_ids[ticket] = task_ids[ticket] or redis.call('HGET', key('ticket', ticket), 'task_id') or ''
  return task_ids[ticket]
end

local function add_entry(call, what, ticket, gpu, detail)
  return call('XADD', JOURNAL, 'MAXLEN', '~', 10000, '*', 'what', what, 'ticket', ticket, 'task_id', task_id_of(ticket),
    'gpu', gpu or '', 'detail', detail or '')
end

local function note(what, ticket, gpu, detail)
  local added = add_entry(redis.pcall, what, ticket, gpu, detail)
  if type(added) == 'table' then
    if string.find(added.err, 'exhausted', 1, true) then
      redis.call('DEL', JOURNAL) -- somebody has written the last entry that there can be: it begins anew
    end
    add_entry(redis.call, what, ticket, gpu, detail)
  end
  redis.call('HINCRBY', COUNTERS, what, 1)
end
