-- Writes down what a reconciliation has corrected.
-- KEYS: prefix
-- ARGV: ticket gpu detail
-- Returns: {'noted'}
-- include: journal
local ticket, gpu, detail = unpack(ARGV)

note('corrected', ticket, gpu, detail)
return { 'noted' }
