-- No new work for this GPU by order, and what was not started goes back; or work again. Survives its worker's restarts.
-- KEYS: prefix
-- ARGV: gpu drained seed
-- Returns: {'drained' | 'undrained', gpu id} | {'unknown'}
-- include: dispatch
local drained, seed = ARGV[2], ARGV[3]
local gpu = pinned_gpu(ARGV[1])

if redis.call('EXISTS', key('device', gpu)) == 0 then
  return { 'unknown' }
end
if drained == '1' then
  if redis.call('HSET', key('closed', gpu), 'drain', 1) == 1 then
    note('drained', '', gpu, '')
  end
  mark_busy(gpu)
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'state')
  if claim[2] == 'claimed' then
    unclaim(gpu)
    back_to_place(claim[1], gpu, 'drained', true)
    dispatch_ticket(claim[1], seed)
  end
  return { 'drained', gpu }
end
if redis.call('HDEL', key('closed', gpu), 'drain') == 1 then
  note('undrained', '', gpu, '')
end
claim_next(gpu, false, seed)
return { 'undrained', gpu }
