-- A GPU gets no work while its device is unwell, or used by what should not be there: a reason, as its worker sees it.
-- With an empty reason it is open again. Who holds the GPU may use it: then nothing is said of it. `has_ended`: what is
-- claimed there is over, and not settled yet.
-- KEYS: prefix
-- ARGV: gpu reason has_ended seed
-- Returns: {'quarantined' | 'opened' | 'unchanged' | 'busy'}
-- include: claim quarantine
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
local ticket, token = unpack(redis.call('HMGET', key('claim', gpu), 'ticket', 'token'))
local lease = by_any_name('lease', gpu)
-- a program is no process of the worker's, which cannot know that it has ended
local is_claimed = token and (has_ended == '0' or is_program(redis.call('HGET', key('ticket', ticket), 'pin')))
if (lease and lease ~= token) or is_claimed then
  return { 'busy' }
end
local is_new = redis.call('HSET', closed, 'device', reason) == 1
mark_busy(gpu)
if not is_new then
  return { 'unchanged' }
end
note('quarantined', '', gpu, reason)
return { 'quarantined' }
