-- Whether the lock of a row is held with this token. `token` is a number in decimal digits, as text.
local function dblock_holds(row_key, token)
  local row, time = redis.call('GET', row_key), redis.call('TIME')
  if not row then
    return false
  end
  local layout, count, _, _, _, _, expire_at, _, _, last = struct.unpack('<BI4BBc16c16i8i8i8c19', row)
  return layout == 1 and count > 0 and expire_at > time[1] * 1000000 + time[2] and last == ('0'):rep(19 - #token) .. token
end
