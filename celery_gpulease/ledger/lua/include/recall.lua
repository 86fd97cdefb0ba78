-- include: keys
-- The worker of a GPU remembers the fence of the last program that it heard of there (START tells it). Where Redis knows
-- of no such fence it was emptied, or has loaded an old snapshot, and that program may still run: nothing is given to
-- the GPU before it has beaten. A wish, which ends by itself.
local function is_held_back(gpu, program_fence, hold_ms)
  if tonumber(program_fence) <= (tonumber(redis.call('GET', key('fence', gpu))) or 0) then
    return false
  end
  redis.call('SET', key('want', gpu), 'whoever had it when Redis forgot', 'NX', 'PX', hold_ms)
  return true
end
