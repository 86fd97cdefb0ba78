-- An operator takes a GPU's lease away, whoever has it. What runs there is told, and never takes it back.
-- KEYS: prefix
-- ARGV: gpu seed
-- Returns: {'claimed' | 'started' | 'program', gpu, task_id, task, worker's presence; '' of a program}
--   | {'foreign', gpu, holder} | {'free', gpu} | {'unknown'}
-- include: dispatch
local seed = ARGV[2]
local gpu = pinned_gpu(ARGV[1])
local lease, lease_key = by_any_name('lease', gpu)
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state')
local ticket = claim[1]

if redis.call('EXISTS', key('device', gpu)) == 0 then
  return { 'unknown' }
elseif ticket and has_vanished(ticket) then
  drop_claim(gpu, claim[2])
  claim = {}
end
if lease and lease ~= claim[2] then
  redis.call('DEL', lease_key) -- a full server allows this write, and those that come first below
  note('forced', '', gpu, lease)
  claim_next(gpu, false, seed)
  return { 'foreign', gpu, lease }
end
local t = redis.call('HMGET', key('ticket', ticket or ''), 'task_id', 'task', 'why', 'pin')
local run = is_program(t[4]) and 'program' or 'started'
local loser = { claim[3] == 'claimed' and 'claimed' or run, gpu, t[1], t[2],
  run == 'program' and '' or redis.call('GET', key('worker', gpu)) }

if claim[3] == 'claimed' then
  unclaim(gpu)
  note('forced', ticket, gpu, '')
  back_to_place(ticket, gpu, 'forced', true)
  claim_next(gpu, false, seed)
  dispatch_ticket(ticket, seed)
  return loser
elseif claim[3] == 'started' then
  run_on_without_lease(gpu, ticket, claim[2], 'forced')
  note('forced', ticket, gpu, '')
  -- its worker, or the program's own heartbeat, hears it also where keys tell nothing
  redis.pcall('PUBLISH', key('here', run == 'program' and ticket or gpu), 'lease')
  return loser
elseif claim[3] == 'tail' and t[3] == 'forced' then -- asked again
  return loser
end
return { 'free', gpu }
