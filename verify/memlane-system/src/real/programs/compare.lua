-- wrk: compares the body of each answer with a file (the first argument).
local threads = {}

function setup(thread)
   table.insert(threads, thread)
end

function init(args)
   local file = assert(io.open(args[1], "rb"))
   expected = file:read("*a")
   file:close()
   checked, wrong = 0, 0
end

function response(status, headers, body)
   checked = checked + 1
   if status ~= 200 or body ~= expected then
      wrong = wrong + 1
   end
end

function done(summary, latency, requests)
   local all, bad = 0, 0
   for _, thread in ipairs(threads) do
      all = all + thread:get("checked")
      bad = bad + thread:get("wrong")
   end
   local e = summary.errors
   local errors = e.connect + e.read + e.write + e.timeout
   print(string.format("compared: %d %d %d", all, bad, errors))
end
