-- Takes up what a dead holder left: its ticket goes back to its place, or to its end. Only a lapsed lease is dead.
-- KEYS: prefix
-- ARGV: gpu seed
-- Returns: {'reaped', ticket, 'claimed' | 'started' | 'tail'} | {'none' | 'held' | 'grace'}
-- include: take_up pulse
local gpu, seed = unpack(ARGV)
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state')
local ticket, token, state = claim[1], claim[2], claim[3]

if not ticket then
  redis.call('ZREM', DEADLINES, gpu)
  return { 'none' }
end
local deadline = tonumber(redis.call('ZSCORE', DEADLINES, gpu) or 0)
-- looking at the lease makes the server notice its end, and publish it
if (token and redis.call('GET', key('lease', gpu)) == token) or deadline > NOW then
  return { 'held' }
end
if state ~= 'claimed' then
  local grace_until = notice_outage()
  if grace_until > NOW then
    redis.call('ZADD', DEADLINES, grace_until, gpu)
    return { 'grace' }
  end
end
take_up(gpu, 'reaped', seed)
return { 'reaped', ticket, state }
