-- Whether the lock of a row is held with this token. `token` is a number in decimal digits, as text.
local function dblock_holds(row_key, token)
  local packed, time = redis.call('GET', row_key), redis.call('TIME')
  if not packed then
    return false
  end
  local row = cmsgpack.unpack(packed)
  return row[1] == 1 and row[4] > 0 and row[5] > time[1] * 1000000 + time[2]
    and row[6] == ('0'):rep(19 - #token) .. token
end
