-- Puts right what is known of one GPU, as far as Redis alone can tell. Answers what was wrong, in words.
-- KEYS: prefix
-- ARGV: gpu found_in change seed
-- Returns: {what was wrong, ...}
-- include: possession pulse offline
local gpu, found_in, change, seed = unpack(ARGV)
local device = fields_of(key('device', gpu), 'ttl_ms', 'heartbeat_ms', 'pools')
local claim = fields_of(key('claim', gpu), 'ticket', 'token', 'state', 'fence')
local t = fields_of(key('ticket', claim.ticket or ''), 'state', 'gpu', 'token')
local lease, lease_ms = redis.call('GET', key('lease', gpu)), redis.call('PTTL', key('lease', gpu))

look_at_registry(gpu, device, found_in)
if tonumber(claim.fence or 0) > tonumber(redis.call('GET', key('fence', gpu)) or 0) then
  found('its fence is behind that of its claim', function()
    redis.call('SET', key('fence', gpu), claim.fence)
  end)
end
if claim.state and t.state and (t.gpu ~= gpu or t.token ~= claim.token) then -- a ticket that is gone may still run
  found('its claim is for a ticket that is elsewhere', function()
    if claim.state == 'claimed' then
      withdraw_message(gpu)
    end
    drop_claim(gpu, claim.token)
    mark_free_if_claimable(gpu)
  end)
else
  look_at_lease(gpu, claim, lease, lease_ms)
  look_at_deadline(gpu, claim, lease, lease_ms)
end

if change == '1' and redis.call('EXISTS', key('worker', gpu)) == 0 and grace() <= NOW then
  note_offline(gpu)
end
correct_all(change)
if change == '1' and #wrong > 0 then
  claim_next(gpu, false, seed)
end
return wrong
