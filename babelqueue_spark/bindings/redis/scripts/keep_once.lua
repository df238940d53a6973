-- In the transaction that appended messages to a list: takes them back when their idempotency key is known.
-- KEYS: the list, idempotency key
-- ARGV: how many were appended, seconds an idempotency key lives
redis.call('llen', KEYS[1])
if first_time(KEYS[2], ARGV[2]) then
    return tonumber(ARGV[1])
end
redis.call('ltrim', KEYS[1], 0, -1 - ARGV[1])
return 0
