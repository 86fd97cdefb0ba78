-- Some lines are not named any more, where nobody waits in them.
-- KEYS: prefix
-- ARGV: line ...
-- Returns: {'forgotten', how many}
-- include: keys
local forgotten = 0

for _, line in ipairs(ARGV) do
  if redis.call('EXISTS', prefix .. line) == 0 then
    forgotten = forgotten + redis.call('SREM', LINES, line)
  end
end
return { 'forgotten', forgotten }
