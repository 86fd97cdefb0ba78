-- What is true of some GPUs, in one moment.
-- KEYS: prefix
-- ARGV: gpu ...
-- Returns: for each GPU {gpu, pools, presence, is alive, lease or nil, its ms, claim's ticket, token, state,
--   ms since its claim or since a stranger's lease was seen or nil, fence, task_id, task, why closed,
--   quarantine's reason, who wants it, alias, index, model, memory_bytes}
-- include: gpu
local found = {}
for _, gpu in ipairs(ARGV) do
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state', 'claimed_ms')
  local task = claim[1] and redis.call('HMGET', key('ticket', claim[1]), 'task_id', 'task') or { false, false }
  local lease, lease_key = by_any_name('lease', gpu)
  local closed = redis.call('HMGET', key('closed', gpu), 'quarantine', 'device')
  local wish = by_any_name('want', gpu)
  local device = redis.call('HMGET', key('device', gpu), 'pools', 'alias', 'index', 'model', 'memory_bytes',
    'stranger', 'stranger_ms')
  local claimed_ms = claim[4]
  if lease and lease ~= claim[2] then
    claimed_ms = lease == device[6] and device[7]
  end
  found[#found + 1] = { gpu, device[1], redis.call('GET', key('worker', gpu)),
    is_alive(gpu) and 1 or 0, lease, redis.call('PTTL', lease_key), claim[1], claim[2], claim[3],
    claimed_ms and (NOW - claimed_ms), redis.call('GET', key('fence', gpu)), task[1], task[2], why_closed(gpu) or false,
    closed[1] or closed[2], wish, device[2], device[3], device[4], device[5] }
end
return found
