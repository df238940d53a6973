-- Seconds since 1970 by the clock of the server: those of its clients differ.
local function now()
    local time = redis.call('time')
    return time[1] + time[2] / 1000000
end
