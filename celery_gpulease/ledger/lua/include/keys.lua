-- The names of our keys. The table of what each holds is in ledger/keys.py.
local prefix = KEYS[1]

local function key(kind, name)
  return prefix .. kind .. ':' .. name
end

local GPUS, HEARTBEATS, NAMES = prefix .. 'gpus', prefix .. 'heartbeats', prefix .. 'names'
local DEADLINES, PULSE = prefix .. 'deadlines', prefix .. 'pulse'
local SCHEDULED, SCHEDULED_COUNT = prefix .. 'scheduled', prefix .. 'scheduled_count'
local EXPIRING, ENDING, ENDED = prefix .. 'expiring', prefix .. 'ending', prefix .. 'ended'
local REVOKED, REVOKED_STAMPS = prefix .. 'revoked', prefix .. 'revoked_stamps'
local LINES, ARRIVAL = prefix .. 'lines', prefix .. 'arrival'
local JOURNAL, COUNTERS = prefix .. 'journal', prefix .. 'counters'
local LAYOUT = prefix .. 'layout'
