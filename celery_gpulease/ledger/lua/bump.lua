-- Changes the priority of a task that waits: within it, who came first still goes first.
-- KEYS: prefix
-- ARGV: task_id priority
-- Returns: {'bumped', {pool or pinned gpu, position or -1: not due yet}, ...} | {'given' | 'ending' | 'unknown'}
-- include: ticket
local task_id, priority = unpack(ARGV)
local word, places = 'unknown', {}

for _, ticket in ipairs(tickets_of(task_id)) do
  local name = key('ticket', ticket)
  local t = redis.call('HMGET', name, 'state', 'pool', 'pin', 'score')
  if t[1] == 'pending' or t[1] == 'scheduled' then
    redis.call('HSET', name, 'priority', priority)
    if t[4] then -- it has its place in the line: what was deferred keeps it too
      local score = tonumber(priority) * PRIORITY_STEP + tonumber(t[4]) % PRIORITY_STEP
      redis.call('HSET', name, 'score', string.format('%.0f', score))
    end
    local rank = false
    if t[1] == 'pending' then
      redis.call('ZADD', line_of(t[2], t[3]), redis.call('HGET', name, 'score'), ticket)
      rank = redis.call('ZRANK', line_of(t[2], t[3]), ticket)
    end
    note('bumped', ticket, '', priority)
    places[#places + 1] = { t[3] ~= '' and t[3] or t[2], rank and rank + 1 or -1 }
  else
    word = t[1] == 'ending' and 'ending' or 'given'
  end
end
if #places > 0 then
  return { 'bumped', unpack(places) }
end
return { word }
