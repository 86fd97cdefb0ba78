-- include: keys
-- Redis was emptied, or has loaded an old snapshot: what it knows of a GPU may be older than the run that is there.
local function has_forgotten(gpu, token)
  local fence = tonumber(string.match(token, '%d+$')) or 0 -- 0 where somebody else has made that token
  return fence > (tonumber(redis.call('GET', key('fence', gpu))) or 0)
end
