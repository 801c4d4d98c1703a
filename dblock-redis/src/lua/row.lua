-- The part that all scripts of this crate share: the row, as it is packed into one string, and the clock.
--
-- KEYS are rows. A row is an array in MessagePack:
--   1 version of this layout   2 lease_id     3 lock_owner   4 reentrant_count   5 expire_at   6 fence_token
--   7 fence_ceiling   8 wanted_until   9 acquired_at   10 revoked   11 holder   12 successor, or nothing
-- and the successor is another: lease, owner, holder, ttl, spare tokens, since, until.
-- Ids are 16 bytes. Times are numbers, in µs; a number is exact up to 2^53 µs, which is the year 2255. Tokens go up to
-- 2^63 - 1, so they are texts of 19 digits, whose order is that of their numbers.

local LAYOUT = 1
local NOBODY = ('\0'):rep(16)
local LARGEST = '9223372036854775807'

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- The number in all its digits: `tostring` would leave the last ones out.
local function digits(number)
  return ('%.0f'):format(number)
end

local function as_token(number)
  return ('%019.0f'):format(number)
end

-- The token `count` above, or the largest there is. `count` is below 2^32.
local function above(token, count)
  local low = tonumber(token:sub(11)) + count
  local high = tonumber(token:sub(1, 10)) + math.floor(low / 1e9)
  local sum = ('%010.0f%09.0f'):format(high, low % 1e9)
  return sum > LARGEST and LARGEST or sum
end

-- How far the second token is above the first: below 2^32.
local function distance(token, ceiling)
  local high = tonumber(ceiling:sub(1, 10)) - tonumber(token:sub(1, 10))
  return high * 1e9 + tonumber(ceiling:sub(11)) - tonumber(token:sub(11))
end

-- The row of a key. Without one it is free, and `absent`. What is there and is no row of ours is not touched: then the
-- second result is the answer.
local function read(key)
  local packed = redis.pcall('GET', key)
  if not packed then
    return {
      lease = NOBODY, owner = NOBODY, count = 0, expire_at = 0, token = as_token(0), ceiling = as_token(0),
      wanted_until = 0, acquired_at = 0, revoked = 0, holder = '', absent = true,
    }
  end
  local understood, row = pcall(cmsgpack.unpack, packed)
  if packed.err or not understood or type(row) ~= 'table' or row[1] ~= LAYOUT then
    return nil, { 'X' }
  end
  local next = row[12]
  return {
    lease = row[2], owner = row[3], count = row[4], expire_at = row[5], token = row[6], ceiling = row[7],
    wanted_until = row[8], acquired_at = row[9], revoked = row[10], holder = row[11],
    next = next and {
      lease = next[1], owner = next[2], holder = next[3], ttl = next[4], spare = next[5], since = next[6],
      ['until'] = next[7],
    },
  }
end

-- Writes the row. The server forgets it when nobody has used it for `idle` µs: no token is ahead of the clock then.
local function write(key, row, idle)
  local next = row.next
  local packed = cmsgpack.pack({
    LAYOUT, row.lease, row.owner, row.count, row.expire_at, row.token, row.ceiling, row.wanted_until,
    row.acquired_at, row.revoked, row.holder,
    next and { next.lease, next.owner, next.holder, next.ttl, next.spare, next.since, next['until'] },
  })
  local used = math.max(row.expire_at, row.wanted_until, tonumber(row.ceiling))
  redis.call('SET', key, packed, 'PXAT', digits(math.ceil((used + idle) / 1000)))
end

local function is_held(row)
  return row.count > 0 and row.expire_at > now
end

-- Tells listeners. A user who may not publish still releases: then waiters poll, and say so.
local function tell(channel, message)
  redis.pcall('PUBLISH', channel, message)
end
