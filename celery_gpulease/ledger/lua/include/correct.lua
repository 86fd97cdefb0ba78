-- include: keys
-- What is wrong is looked for first, all of it, and put right after that: so a dry run says the same.
local wrong, cures = {}, {}

local function found(words, cure)
  wrong[#wrong + 1] = words
  cures[#cures + 1] = cure
end

local function correct_all(change, ...)
  for _, cure in ipairs(change == '1' and cures or {}) do
    cure(...)
  end
  return wrong
end

local function fields_of(name, ...)
  local values, named = redis.call('HMGET', name, ...), {}
  for at, field in ipairs({ ... }) do
    named[field] = values[at] or nil
  end
  return named
end
