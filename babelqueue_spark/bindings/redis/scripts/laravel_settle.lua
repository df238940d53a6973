-- KEYS: reserved, and to give the messages back: ready, notify
-- ARGV: how many, their reserved members, then (to give them back) their bodies
local reserved, ready, notify = unpack(KEYS)
local count = tonumber(ARGV[1])

if ready then
    redis.call('llen', ready)
    redis.call('llen', notify)
end

-- Equal bodies share one reserved member, so the first of them settles all.
local hits, settled, back, tokens = {}, {}, {}, {}
for i = 1, count do
    local member = ARGV[i + 1]
    settled[member] = settled[member] or redis.call('zrem', reserved, member)
    hits[i] = settled[member]
end

if ready then
    for i = count, 1, -1 do
        if hits[i] == 1 then
            back[#back + 1] = ARGV[count + i + 1]
            tokens[#tokens + 1] = 1
        end
    end
    send('lpush', ready, back)
    send('rpush', notify, tokens)
end
return table.concat(hits)
