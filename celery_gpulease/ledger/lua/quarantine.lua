-- A GPU gets no work while something else uses it: processes that are `left` there, as its worker reads them.
-- Where none is any more, it is open again.
-- KEYS: prefix
-- ARGV: gpu reason left seed
-- Returns: {'quarantined' | 'open'}
-- include: claim quarantine
local gpu, reason, left, seed = unpack(ARGV)
local closed = key('closed', gpu)

if left ~= '' then
  redis.call('HSET', closed, 'quarantine', reason, 'left', left)
  mark_busy(gpu)
  note('quarantined', '', gpu, reason)
  return { 'quarantined' }
end
if redis.call('HDEL', closed, 'left') == 1 then
  end_quarantine(gpu, reason)
  claim_next(gpu, false, seed)
end
return { 'open' }
