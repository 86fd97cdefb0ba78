-- One GPU as the reconciler finds it, and the correction that is a matter of Redis alone: the index of free GPUs.
-- KEYS: prefix
-- ARGV: gpu change
-- Returns: {now, is alive, is claimable, in the index where it should not be | missing from it (1 or 0),
--   somebody waits for it (1 or 0), claim's state, claim's token, lease, running token, reported_ms, started_ms,
--   claim's ticket, claim's fence, heartbeat_ms, ttl_ms, its claim is over (1 or 0),
--   since when it is in the index}
-- include: claim pulse
local gpu, change = unpack(ARGV)
local claimable = is_claimable(gpu, false)
local claim = redis.call('HMGET', key('claim', gpu), 'state', 'token', 'started_ms', 'ticket', 'fence')
local lease = redis.call('GET', key('lease', gpu))
-- what a stranger holds, or wants, may stay listed: a claim looks at the keys
local is_strangers = not claim[1] and (by_any_name('lease', gpu) or by_any_name('want', gpu))
local is_astray, since = false, false
for pool in pools_of(gpu) do
  local listed = redis.call('ZSCORE', key('free', pool), gpu)
  since = since or listed
  is_astray = is_astray or ((listed and true or false) ~= claimable and not is_strangers)
end
if is_astray and change == '1' then
  if claimable then mark_free(gpu) else mark_busy(gpu) end
end
local waits = false
for _, lines in ipairs(lines_of(gpu)) do
  waits = waits or redis.call('EXISTS', unpack(lines)) > 0
end
-- as REAP sees it: not so where a run may still say, after an outage, that it lives
local is_over = claim[4] and lease ~= claim[2] and (tonumber(redis.call('ZSCORE', DEADLINES, gpu)) or 0) <= NOW
  and (claim[1] == 'claimed' or grace() <= NOW)
local device = redis.call('HMGET', key('device', gpu), 'running', 'reported_ms', 'heartbeat_ms', 'ttl_ms')
if claim[4] and is_program(redis.call('HGET', key('ticket', claim[4]), 'pin')) then
  device[1], device[2] = false, false -- the worker does not run it, so that its reports say nothing of it
end
return { NOW, is_alive(gpu) and 1 or 0, claimable and 1 or 0, is_astray and 1 or 0, waits and 1 or 0, claim[1],
  claim[2], lease, device[1], device[2], claim[3], claim[4], claim[5], device[3], device[4], is_over and 1 or 0,
  since }
