-- Reads rows. Answers the clock, and one string for each key: the row as it is packed, nothing without one,
-- or 'X' where there is something else.
local answers = { now }
for n, key in ipairs(KEYS) do
  local packed = get(key)
  answers[n + 1] = read(packed) and (packed or '') or 'X'
end
return answers
