-- Claims of the connector in the default layout. The messages of a claim are a list of their own,
-- `<queue>:processing:<token>`; a sorted set has its token, by the second in which the claim lapses.
--
-- An index from the tail names a message for as long as its claim holds it: messages leave at the head, or
-- are replaced by the token, which no message can be, since it is younger than all of them.

local MOST_BYTES = 32 * 1024 * 1024 -- of bodies a script moves: other clients wait for it

local function list_of(processing, token)
    return processing .. ':' .. token
end

local function lapsed_claims(claims, second, limit)
    return redis.call('zrangebyscore', claims, '-inf', second, 'limit', 0, limit)
end

-- Moves messages of lapsed claims to the tail of `ready`, up to `limit` of them; returns how many.
local function recover(claims, processing, second, limit, ready)
    local messages, bytes, moved = tonumber(limit), MOST_BYTES, 0
    for _, token in ipairs(lapsed_claims(claims, second, limit)) do
        local list, left = list_of(processing, token), {}
        local values = peek(list, 0, messages, bytes, moved == 0 and 1 or 0)
        for _, value in ipairs(values) do
            bytes = bytes - #value
            if value ~= token then
                left[#left + 1] = value
            end
        end
        messages, moved = messages - #values, moved + #left
        redis.call('ltrim', list, #values, -1)
        send('rpush', ready, left)
        if redis.call('llen', list) > 0 then
            break
        end
        redis.call('zrem', claims, token)
    end
    return moved
end
