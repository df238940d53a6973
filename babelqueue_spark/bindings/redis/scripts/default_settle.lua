-- KEYS: processing, deadlines, and to give the messages back: ready
-- ARGV: deadline members; only those that still exist are ours to settle
local processing, deadlines, ready = unpack(KEYS)

redis.call('llen', processing)
if ready then
    redis.call('llen', ready)
end

local hits, values = {}, {}
for i, member in ipairs(ARGV) do
    if redis.call('zrem', deadlines, member) == 1 then
        hits[i] = '1'
        values[#values + 1] = value_of(member)
    else
        hits[i] = '0'
    end
end
remove(processing, values)

if ready then
    give_back(ready, values)
end
return table.concat(hits)
