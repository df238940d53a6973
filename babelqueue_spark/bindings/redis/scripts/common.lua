-- Helpers that stand in front of every script.

local SLICE = 4000 -- values a command: unpack() fails near 8000

-- One command with many values, in slices that fit on Lua's stack.
local function send(command, key, values)
    for first = 1, #values, SLICE do
        redis.call(command, key, unpack(values, first, math.min(first + SLICE - 1, #values)))
    end
end

-- Puts values before the head of a list, in their order.
local function give_back(list, values)
    local reversed = {}
    for i = #values, 1, -1 do
        reversed[#reversed + 1] = values[i]
    end
    send('lpush', list, reversed)
end

-- The values of a list from `offset` on: up to `count` of them and `max_bytes`, but `least` in any case.
-- Slices grow with what the values so far let expect, so that little is read in vain.
local function peek(key, offset, count, max_bytes, least)
    local values, bytes = {}, 0
    while #values < count and (#values == 0 or bytes < max_bytes) do
        local room = (max_bytes - bytes) * #values / math.max(bytes, 1) + 1
        local size = math.max(1, math.floor(math.min(room, 3 * #values + 1, count - #values, SLICE)))
        local first = offset + #values
        local slice = redis.call('lrange', key, first, first + size - 1)
        for _, value in ipairs(slice) do
            bytes = bytes + #value
            if #values >= least and bytes > max_bytes then
                return values
            end
            values[#values + 1] = value
        end
        if #slice < size then
            return values
        end
    end
    return values
end

-- Moves the members of a sorted set whose score has come to the tail of a list, by way of `select`.
local function move_due(from, now, limit, select, list)
    local members = redis.call('zrangebyscore', from, '-inf', now, 'limit', 0, limit)
    local values = select(members)
    send('rpush', list, values)
    if #members > 0 then
        redis.call('zremrangebyrank', from, 0, #members - 1)
    end
    return values
end

-- When a claim lapses that is made in this second: deadlines are whole seconds, or '+inf'.
local function deadline_of(second, lease)
    return lease == '+inf' and lease or second + lease
end

local function all(members)
    return members
end

-- At maxmemory Redis refuses a script whose first write may need memory, and nothing after it. An
-- empty removal goes first, so that a full server can still be drained.
local function open_for_writes(sorted_set)
    redis.call('zremrangebyrank', sorted_set, 1, 0)
end

-- True when the idempotency key is new, or when there is none.
local function first_time(key, seconds)
    return not key or redis.call('set', key, 1, 'nx', 'ex', seconds)
end
