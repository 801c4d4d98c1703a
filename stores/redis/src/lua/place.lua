-- For tests: writes rows past the rules. ARGV: idle time; then for each key the columns, those of the successor or ''
-- in the place of its lease, how many share the lock, and the columns of each.
local place = 2
local function take()
  place = place + 1
  return ARGV[place - 1]
end
local function number()
  return tonumber(take())
end
for _, key in ipairs(KEYS) do
  lease, owner, count, expire_at, token, ceiling = take(), take(), number(), number(), take(), take()
  wanted_until, acquired_at, revoked, holder = number(), number(), number(), take()
  next = {
    lease = take(), owner = take(), holder = take(), ttl = number(), spare = number(), since = number(),
    ['until'] = number(), limit = number(),
  }
  shared = {}
  for n = 1, number() do
    shared[n] = { lease = take(), holder = take(), count = number(), number = number(), ['until'] = number() }
  end
  next = next.lease ~= '' and next or nil
  write(key, tonumber(ARGV[1]))
end
