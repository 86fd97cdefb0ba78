-- The worker stops. 'closing': nothing new from now on, what was not started goes back. 'gone': what ran goes back too.
-- KEYS: prefix
-- ARGV: gpu instance phase seed
-- Returns: {'left' | 'taken'}
-- include: dispatch
local gpu, instance, phase, seed = unpack(ARGV)
local presence = redis.call('GET', key('worker', gpu))

if presence and not string.find(presence, instance, 1, true) then
  return { 'taken' }
end
mark_busy(gpu) -- a full server allows this write, and with it all that follow
redis.call('HSET', key('closed', gpu), 'closing', 1)
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state')
if claim[3] and claim[3] ~= 'claimed' and is_program(redis.call('HGET', key('ticket', claim[1]), 'pin')) then
  claim = {} -- it does not end with this worker
end
if claim[3] == 'claimed' then
  withdraw_message(gpu)
  back_to_place(claim[1], gpu, 'shutdown', false)
elseif claim[3] and phase == 'gone' then
  redis.call('HDEL', key('ticket', claim[1]), 'last_run') -- it is over
  local t = redis.call('HMGET', key('ticket', claim[1]), 'acks_late', 'superseded')
  if t[1] == '0' or t[2] then
    return_died(claim[1], gpu, 'shutdown')
  else
    back_to_place(claim[1], gpu, 'shutdown', false)
  end
end
if claim[3] == 'claimed' or (claim[3] and phase == 'gone') then
  drop_claim(gpu, claim[2])
  dispatch_ticket(claim[1], seed)
end
if phase == 'gone' then
  redis.call('DEL', key('worker', gpu))
  redis.call('HDEL', key('device', gpu), 'presence')
  withdraw_all(gpu)
  claim_next(gpu, false, seed) -- a program that waits needs no worker
end
return { 'left' }
