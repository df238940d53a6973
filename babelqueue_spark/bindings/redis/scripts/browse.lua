-- KEYS: ready
-- ARGV: offset, messages, max bytes
return peek(KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), 1)
