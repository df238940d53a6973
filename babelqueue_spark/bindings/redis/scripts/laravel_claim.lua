-- KEYS: ready, notify, reserved, delayed
-- ARGV: seconds until the claim lapses, messages, max bytes, messages to take however large they are, most
--       lapsed or due messages to move, recover lapsed ('1')
-- Returns the bodies, and for each the reserved member ('' when that is the body itself).
local ready, notify, reserved, delayed = unpack(KEYS)
local limit, second = ARGV[5], math.floor(now())
local deadline = deadline_of(second, ARGV[1])

-- Reads first: a key of another type fails here, where nothing has been written yet.
redis.call('llen', ready)
redis.call('llen', notify)
redis.call('zcard', delayed)
open_for_writes(reserved)

local function move_and_notify(from)
    local tokens = {}
    for i = 1, #move_due(from, second, limit, all, ready) do
        tokens[i] = 1
    end
    send('rpush', notify, tokens)
end

-- Laravel's member counts this delivery. What cjson cannot count in is reserved as it is.
local function reserved_member(body)
    local read, job = pcall(cjson.decode, body)
    if read and type(job) == 'table' and type(job['attempts']) == 'number' then
        job['attempts'] = job['attempts'] + 1
        local written, member = pcall(cjson.encode, job)
        if written then
            return member
        end
    end
    return body
end

move_and_notify(delayed)
if ARGV[6] == '1' then
    move_and_notify(reserved)
end

local bodies = peek(ready, 0, tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
local claims, members = {}, {}
for i, body in ipairs(bodies) do
    local member = reserved_member(body)
    claims[2 * i - 1] = deadline
    claims[2 * i] = member
    members[i] = member == body and '' or member
end
send('zadd', reserved, claims)
redis.call('ltrim', ready, #bodies, -1)
redis.call('ltrim', notify, #bodies, -1)
return {bodies, members}
