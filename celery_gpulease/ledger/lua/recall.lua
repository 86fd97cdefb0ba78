-- A worker was cut off from its GPU: asks whether Redis has forgotten a program there, and which one has it now.
-- KEYS: prefix
-- ARGV: gpu program_fence hold_ms
-- Returns: {'forgotten'} | {'known', fence of the program that has started there, or 0}
-- include: recall line
local gpu, program_fence, hold_ms = unpack(ARGV)

if is_held_back(gpu, program_fence, hold_ms) then
  return { 'forgotten' }
end
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'fence', 'state')
local is_there = claim[1] and claim[3] ~= 'claimed' and is_program(redis.call('HGET', key('ticket', claim[1]), 'pin'))
return { 'known', is_there and claim[2] or '0' }
