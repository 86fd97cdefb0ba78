-- A GPU that is gone for good leaves the registry, and what closed it goes with it. Refused while it may be in use.
-- Its fence stays: a run that comes back late is told by it from one that Redis has lost (forgotten.lua).
-- `name` is what else it is called; `scheduled`: how many wait for it that are not due yet.
-- KEYS: prefix
-- ARGV: gpu scheduled name ...
-- Returns: {'removed', gpu, 'drain' | 'quarantine' | 'drain and quarantine' | ''}
--   | {'served', gpu, presence, ms until that ends} | {'busy', gpu, task_id, task} | {'leased', gpu, holder}
--   | {'awaited', gpu, by how many} | {'unknown'}
-- include: dispatch unregister
local gpu, waiting = pinned_gpu(ARGV[1]), tonumber(ARGV[2])
local names = { gpu, unpack(ARGV, 3) }
local presence, lease = redis.call('GET', key('worker', gpu)), by_any_name('lease', gpu)

if redis.call('EXISTS', key('device', gpu)) == 0 then
  return { 'unknown' }
elseif presence then
  return { 'served', gpu, presence, redis.call('PTTL', key('worker', gpu)) }
end
for _, name in ipairs({ gpu, device_of(gpu)[6] or '' }) do -- its lease may have lapsed while it runs
  local ticket = redis.call('HGET', key('claim', name), 'ticket')
  if ticket then
    local t = redis.call('HMGET', key('ticket', ticket), 'task_id', 'task')
    return { 'busy', gpu, t[1] or ticket, t[2] or '' }
  end
end
if lease then
  return { 'leased', gpu, lease }
end
for _, name in ipairs(names) do
  waiting = waiting + redis.call('ZCARD', key('pinned', name))
end
if waiting > 0 then
  return { 'awaited', gpu, waiting }
end

local closed, reasons = redis.call('HMGET', key('closed', gpu), 'drain', 'quarantine', 'device'), {}
reasons[#reasons + 1] = closed[1] and 'drain' or nil
reasons[#reasons + 1] = (closed[2] or closed[3]) and 'quarantine' or nil
local gone = table.concat(reasons, ' and ')
redis.call('DEL', key('closed', gpu)) -- a full server allows this write, and with it all that follow
redis.call('ZREM', DEADLINES, gpu)
withdraw_all(gpu)
note('removed', '', gpu, gone ~= '' and 'with its ' .. gone or '')
unregister(gpu, names)
return { 'removed', gpu, gone }
