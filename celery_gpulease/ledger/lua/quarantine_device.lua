-- A GPU gets no work while its device is unwell, or used by what should not be there: a reason, as its worker sees it.
-- With an empty reason it is open again. Who holds the GPU may use it: then nothing is said of it. `has_ended`: what a
-- worker ran there is over, and not settled yet; a program has no worker, and holds the GPU all the same.
-- KEYS: prefix
-- ARGV: gpu reason has_ended seed
-- Returns: {'quarantined' | 'opened' | 'unchanged' | 'busy'}
-- include: claim
local gpu, reason, has_ended, seed = unpack(ARGV)
local closed = key('closed', gpu)

if reason == '' then
  if redis.call('HDEL', closed, 'device') == 1 then
    note('quarantine_ended', '', gpu, 'its device is well again')
    claim_next(gpu, false, seed)
    return { 'opened' }
  end
  return { 'unchanged' }
end
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token')
local lease = by_any_name('lease', gpu)
local is_over = has_ended == '1' and not is_program(redis.call('HGET', key('ticket', claim[1] or ''), 'pin'))
if (lease and lease ~= claim[2]) or (claim[2] and not is_over) then
  return { 'busy' }
end
local is_new = redis.call('HSET', closed, 'device', reason) == 1
mark_busy(gpu)
if not is_new then
  return { 'unchanged' }
end
note('quarantined', '', gpu, reason)
return { 'quarantined' }
