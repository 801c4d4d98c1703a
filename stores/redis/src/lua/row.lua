-- The part that all scripts of this crate share: the row, as it is packed into one string, and the clock.
--
-- KEYS are rows. A row is packed by `struct`, its numbers little-endian:
--   version of this layout (1 byte), reentrant_count (4), 1 with a successor (1), revoked (1), lease_id and
--   lock_owner (16 each), expire_at, wanted_until and acquired_at (8 each), fence_token and fence_ceiling (19
--   each), the length of holder (1), holder
-- and the successor follows: lease and owner (16 each), ttl, since and until (8 each), spare tokens (4), the
-- length of holder (1), holder. Without one, what follows means nothing.
--
-- Only a row of a shared lock, or one that will be shared next, has the second layout, which a program that knows the
-- first one alone refuses. Then follow: the successor's limit (4; 0 if it wants the lock alone), how many processes share
-- the lock (4), and for each lease (16), count (4), number and until (8 each), the length of holder (1), holder.
-- Times are in µs; a number is exact up to 2^53 µs, which is the year 2255. Tokens go up to 2^63 - 1, so they
-- are texts of 19 digits, whose order is that of their numbers.

local ALONE, SHARED = 1, 2
local ROW, NEXT = '<BI4BBc16c16i8i8i8c19c19Bc0', '<c16c16i8i8i8I4Bc0'
local SHARE, HOLD = '<I4I4', '<c16I4i8i8Bc0'
local NOBODY, NO_TOKEN = ('\0'):rep(16), ('0'):rep(19)

local pack, unpack_bytes = struct.pack, struct.unpack
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- The row of the key at hand, a variable for each column. The successor is a table, or nil. Those who share the lock are
-- a list of tables.
local lease, owner, count, expire_at, token, ceiling, wanted_until, acquired_at, revoked, holder, next, shared
-- The layout in which it was read.
local layout
-- The list of those who share, of all rows that nobody shares. Nothing is put into it.
local NONE = {}

-- What is kept under a key, or the error of what is no string. Any other error is not the row's, such as that of a
-- user without the right: it ends the script.
local function get(key)
  local found = redis.pcall('GET', key)
  if found and found.err and not found.err:find('WRONGTYPE', 1, true) then
    error(found.err, 0)
  end
  return found
end

-- Reads the row that `packed` is, or nobody's without one. False for what is no row of ours, and must not be
-- touched.
local function read(packed)
  shared, layout = NONE, ALONE
  if not packed then
    lease, owner, count, expire_at, token, ceiling = NOBODY, NOBODY, 0, 0, NO_TOKEN, NO_TOKEN
    wanted_until, acquired_at, revoked, holder, next = 0, 0, 0, '', nil
    return true
  end
  if packed.err or packed:byte() ~= ALONE and packed:byte() ~= SHARED then
    return false
  end
  local understood, has_next, at
  understood, layout, count, has_next, revoked, lease, owner, expire_at, wanted_until, acquired_at, token, ceiling, holder, at =
    pcall(unpack_bytes, ROW, packed)
  next = nil
  if understood and has_next == 1 then
    next = { limit = 0 }
    understood, next.lease, next.owner, next.ttl, next.since, next['until'], next.spare, next.holder, at =
      pcall(unpack_bytes, NEXT, packed, at)
  end
  if understood and layout == SHARED then
    local limit, holds
    shared = {}
    understood, limit, holds, at = pcall(unpack_bytes, SHARE, packed, at)
    if understood and next then
      next.limit = limit
    end
    for n = 1, understood and holds or 0 do
      local hold = {}
      understood, hold.lease, hold.count, hold.number, hold['until'], hold.holder, at =
        pcall(unpack_bytes, HOLD, packed, at)
      if not understood then
        break
      end
      shared[n] = hold
    end
  end
  return understood
end

local last_use, kept_until
-- Writes the row. The server forgets it when nobody has used it for `idle` µs: no token is ahead of the clock
-- then.
local function write(key, idle)
  local is_shared = #shared > 0 or next and next.limit > 0
  local packed = pack(
    ROW, is_shared and SHARED or ALONE, count, next and 1 or 0, revoked, lease, owner, expire_at, wanted_until, acquired_at, token, ceiling,
    #holder, holder
  )
  if next then
    packed = packed .. pack(
      NEXT, next.lease, next.owner, next.ttl, next.since, next['until'], next.spare, #next.holder, next.holder
    )
  end
  if is_shared then
    local holds = { packed, pack(SHARE, next and next.limit or 0, #shared) }
    for n, hold in ipairs(shared) do
      holds[n + 2] = pack(HOLD, hold.lease, hold.count, hold.number, hold['until'], #hold.holder, hold.holder)
    end
    packed = table.concat(holds)
  end
  local used = math.max(expire_at, wanted_until, tonumber(ceiling))
  if used ~= last_use then
    -- All its digits: `tostring` would leave the last ones out.
    last_use, kept_until = used, ('%.0f'):format(math.ceil((used + idle) / 1000))
  end
  redis.call('SET', key, packed, 'PXAT', kept_until)
end

-- Writes the holds and the end of the successor, where nothing else has changed.
local function write_end(key, idle)
  if layout == SHARED then
    return write(key, idle)
  end
  redis.call('SETRANGE', key, '1', pack('<I4B', count, 0))
end

-- Tells listeners. A user who may not publish still releases: then waiters poll, and say so.
local function tell(channel, message)
  redis.pcall('PUBLISH', channel, message)
end
