-- A GPU's own worker takes work for it. A claim of its own that nobody started yet is its claim: safe to repeat.
-- KEYS: prefix
-- ARGV: gpu program_fence hold_ms seed
-- Returns: {'claimed', ticket} | {'idle'} | {'forgotten'}
--   | {'closed', reason, ms until the lease and any wish end, or -1: never, -2: there is neither}
-- include: claim recall
local gpu, program_fence, hold_ms, seed = unpack(ARGV)
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'state', 'token')

if claim[2] == 'claimed' and redis.call('GET', key('lease', gpu)) == claim[3] then
  return { 'claimed', claim[1] }
elseif is_held_back(gpu, program_fence, hold_ms) then
  return { 'forgotten' }
end
local word, ticket = claim_next(gpu, true, seed)
if word ~= 'closed' then
  redis.call('HDEL', key('device', gpu), 'stranger')
  return { word, ticket }
end
-- include: gpu
local lease, lease_key = by_any_name('lease', gpu)
local _, wish_key = by_any_name('want', gpu)
local lease_ms, wish_ms = redis.call('PTTL', lease_key), redis.call('PTTL', wish_key)
local stranger = lease ~= claim[3] and lease or nil
if not stranger then
  redis.call('HDEL', key('device', gpu), 'stranger')
elseif redis.call('HGET', key('device', gpu), 'stranger') ~= stranger then -- a full server refuses to remember that
  redis.pcall('HSET', key('device', gpu), 'stranger', stranger, 'stranger_ms', NOW)
end
local reason = why_closed(gpu) or (lease_ms == -2 and wish_ms ~= -2 and 'wanted') or 'leased'
return { 'closed', reason, math.max(lease_ms, wish_ms) }
