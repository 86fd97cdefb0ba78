-- For the assembled text of each ledger operation, as the server runs it (see `make lint`).
std = "lua51"
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
max_line_length = 120
