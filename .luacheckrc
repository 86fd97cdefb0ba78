-- For the assembled text of each ledger operation, as the server runs it (see `make lint`).
std = "lua51"
-- A statement of lua/include/ may name several keys, of which this operation needs one.
-- And what is included below an operation's first lines has names of its own, which may be the same.
ignore = { "211", "431" }
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
max_line_length = 120
