-- The part that all scripts of this crate share: the row, as it is packed into one string, and the clock.
--
-- KEYS are rows. A row is packed by `struct`, its numbers little-endian:
--   version of this layout (1 byte), reentrant_count (4), 1 with a successor (1), revoked (1), lease_id and
--   lock_owner (16 each), expire_at, wanted_until and acquired_at (8 each), fence_token and fence_ceiling (19
--   each), the length of holder (1), holder
-- and the successor follows: lease and owner (16 each), ttl, since and until (8 each), spare tokens (4), the
-- length of holder (1), holder. Without one, what follows means nothing.
-- Times are in µs; a number is exact up to 2^53 µs, which is the year 2255. Tokens go up to 2^63 - 1, so they
-- are texts of 19 digits, whose order is that of their numbers.

local LAYOUT = 1
local ROW, NEXT = '<BI4BBc16c16i8i8i8c19c19Bc0', '<c16c16i8i8i8I4Bc0'
local NOBODY, NO_TOKEN = ('\0'):rep(16), ('0'):rep(19)

local pack, unpack_bytes = struct.pack, struct.unpack
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- The row of the key at hand, a variable for each column. The successor is a table, or nil.
local lease, owner, count, expire_at, token, ceiling, wanted_until, acquired_at, revoked, holder, next

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
  if not packed then
    lease, owner, count, expire_at, token, ceiling = NOBODY, NOBODY, 0, 0, NO_TOKEN, NO_TOKEN
    wanted_until, acquired_at, revoked, holder, next = 0, 0, 0, '', nil
    return true
  end
  if packed.err or packed:byte() ~= LAYOUT then
    return false
  end
  local understood, layout, has_next, at
  understood, layout, count, has_next, revoked, lease, owner, expire_at, wanted_until, acquired_at, token, ceiling, holder, at =
    pcall(unpack_bytes, ROW, packed)
  next = nil
  if understood and has_next == 1 then
    next = {}
    understood, next.lease, next.owner, next.ttl, next.since, next['until'], next.spare, next.holder =
      pcall(unpack_bytes, NEXT, packed, at)
  end
  return understood
end

local last_use, kept_until
-- Writes the row. The server forgets it when nobody has used it for `idle` µs: no token is ahead of the clock
-- then.
local function write(key, idle)
  local packed = pack(
    ROW, LAYOUT, count, next and 1 or 0, revoked, lease, owner, expire_at, wanted_until, acquired_at, token, ceiling,
    #holder, holder
  )
  if next then
    packed = packed .. pack(
      NEXT, next.lease, next.owner, next.ttl, next.since, next['until'], next.spare, #next.holder, next.holder
    )
  end
  local used = math.max(expire_at, wanted_until, tonumber(ceiling))
  if used ~= last_use then
    -- All its digits: `tostring` would leave the last ones out.
    last_use, kept_until = used, ('%.0f'):format(math.ceil((used + idle) / 1000))
  end
  redis.call('SET', key, packed, 'PXAT', kept_until)
end

-- Writes the holds and the end of the successor, where nothing else has changed.
local function write_end(key)
  redis.call('SETRANGE', key, '1', pack('<I4B', count, 0))
end

-- Tells listeners. A user who may not publish still releases: then waiters poll, and say so.
local function tell(channel, message)
  redis.pcall('PUBLISH', channel, message)
end
