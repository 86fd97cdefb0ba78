-- Is this ledger of our layout? One that has none yet, or an older one that nobody uses, may become so.
-- Safe to repeat; it changes nothing where `takes` is empty.
-- KEYS: prefix
-- ARGV: layout version takes
-- Returns: {'agreed'} | {'open', its layout} | {'other', its layout, the version that made it so}
-- include: keys
local layout, version, takes = unpack(ARGV)
local found = redis.call('HMGET', LAYOUT, 'number', 'version')
local its, ours = tonumber(found[1]) or 1, tonumber(layout) -- the first one began before it had a number

local function is_in_use()
  for _, gpu in ipairs(redis.call('ZRANGE', GPUS, 0, -1)) do
    if redis.call('EXISTS', key('worker', gpu)) == 1 then
      return true
    end
  end
  for _, line in ipairs(redis.call('SMEMBERS', LINES)) do
    if redis.call('EXISTS', prefix .. line) == 1 then
      return true
    end
  end
  return redis.call('EXISTS', SCHEDULED, ENDING, DEADLINES) > 0
end

if found[1] == layout then
  return { 'agreed' }
elseif its > ours or (its < ours and is_in_use()) then
  return { 'other', its, found[2] or '' }
elseif takes == '' then
  return { 'open', its }
end
redis.call('HSET', LAYOUT, 'number', layout, 'version', version)
return { 'agreed' }
