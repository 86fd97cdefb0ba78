-- Counts the scheduled anew, where they are not too many for that: an index that only views read.
-- KEYS: prefix
-- ARGV: change
-- Returns: {what was wrong, ...}
-- include: line correct
local change = ARGV[1]
local MOST = 1000

if redis.call('ZCARD', SCHEDULED) <= MOST then
  local actual, said = {}, redis.call('HGETALL', SCHEDULED_COUNT)
  for _, ticket in ipairs(redis.call('ZRANGE', SCHEDULED, 0, -1)) do
    local pool = redis.call('HGET', key('ticket', ticket), 'pool')
    if pool then
      actual[pool] = (actual[pool] or 0) + 1
    end
  end
  local is_right = true
  local left = {}
  for pool, number in pairs(actual) do
    left[pool] = number
  end
  for at = 1, #said, 2 do
    is_right = is_right and tonumber(said[at + 1]) == (left[said[at]] or 0)
    left[said[at]] = nil
  end
  if not is_right or next(left) then
    found('the scheduled were counted wrongly', function()
      redis.call('DEL', SCHEDULED_COUNT)
      for pool, number in pairs(actual) do
        redis.call('HSET', SCHEDULED_COUNT, pool, number)
      end
    end)
  end
end
return correct_all(change)
