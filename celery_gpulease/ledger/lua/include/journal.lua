-- include: keys
-- What happened to whom: a capped stream for people, totals for metrics.
local tasks = {}

-- A ticket's task: its id, and its name. '' where the ticket is gone; else they never change, and are read once in a call.
local function task_of(ticket)
  tasks[ticket] = tasks[ticket] or redis.call('HMGET', key('ticket', ticket), 'task_id', 'task')
  return tasks[ticket][1] or '', tasks[ticket][2] or ''
end

local function add_entry(call, what, ticket, gpu, detail)
  local task_id, task = task_of(ticket)
  return call('XADD', JOURNAL, 'MAXLEN', '~', 10000, '*', 'what', what, 'ticket', ticket, 'task_id', task_id,
    'task', task, 'gpu', gpu or '', 'detail', detail or '')
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
