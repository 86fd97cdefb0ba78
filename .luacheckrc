-- For the assembled text of each ledger operation, as the server runs it (see `make lint`).
std = "lua51"
-- What a part in lua/include/ names and this operation does not need: only its functions are left out.
ignore = { "211", "231/NOW" }
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
max_line_length = 120
