-- Reads rows. Answers the clock, and one array for each key: empty without a row, 'X' where there is something else.
local answers = { now }
for n, key in ipairs(KEYS) do
  local row, other = read(key)
  if not row then
    answers[n + 1] = other
  elseif row.absent then
    answers[n + 1] = {}
  else
    local answer = {
      'H', row.lease, row.owner, row.count, row.expire_at, row.token, row.ceiling, row.wanted_until, row.acquired_at,
      row.revoked, row.holder,
    }
    local next = row.next
    if next then
      for _, column in ipairs({ next.lease, next.owner, next.holder, next.ttl, next.spare, next.since, next['until'] }) do
        answer[#answer + 1] = column
      end
    end
    answers[n + 1] = answer
  end
end
return answers
