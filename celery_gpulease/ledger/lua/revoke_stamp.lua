-- Remembers a stamp: whatever bears it and is held, or goes back to its line, ends from now on.
-- KEYS: prefix
-- ARGV: stamp
-- Returns: {'revoked'}
-- include: revoked
local stamp = ARGV[1]

remember_revoked(REVOKED_STAMPS, stamp)
return { 'revoked' }
