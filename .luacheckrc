-- For the assembled text of each ledger operation, as the server runs it (see `make lint`).
std = "lua51"
-- What a part in lua/include/ offers and this operation does not need: Redis compiles it once, nothing runs.
ignore = { "211" }
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
max_line_length = 120
