-- Burst buffers of Slurm on a cairn target. Lies beside slurm.conf, as Slurm demands.
--
--     #CAIRN pool=cairn capacity=20GiB
--     #CAIRN stage_in source=/pfs/in destination=in
--     #CAIRN stage_out source=out destination=/pfs/out
--     #CAIRN persist=/pfs/results
--     #CAIRN job=NAME
--
-- and the words of DataWarp: jobdw type=scratch capacity=10GB access_mode=striped|private,
-- stage_in and stage_out with type=file|directory and $DW_JOB_STRIPED or $DW_JOB_PRIVATE.
-- Decimal units end in B (GB), binary ones in iB (GiB) or nothing (G).
--
-- Must stay true: job_process, pools and paths start no process and wait for nothing, since they
-- run inside slurmctld. All work on data is done by the script `stage`.

local here = "/etc/slurm/cairn-bb"
local powers = { K = 1, M = 2, G = 3, T = 4, P = 5 }

local function bytes_of(text)
    local number, unit = text:match("^(%d+)([KMGTP]i?B?)$")
    if not number then return nil end
    local base = unit:match("^.B$") and 1000 or 1024
    return tonumber(number) * base ^ powers[unit:sub(1, 1)]
end

-- Returns a path below the store, or nil and what is wrong.
local function path_in_store(value)
    local path = value
    for _, prefix in ipairs({ "$DW_JOB_STRIPED", "$DW_JOB_PRIVATE", "/cairn" }) do
        if path == prefix or path:sub(1, #prefix + 1) == prefix .. "/" then path = path:sub(#prefix + 1) end
    end
    if path == value and path:sub(1, 1) == "/" then return nil, "must be a path in the store, as in results/a" end
    path = path:gsub("^/+", ""):gsub("/+$", "")
    if path == "" then path = "." end
    if ("/" .. path .. "/"):find("/../", 1, true) then return nil, "must not contain .." end
    return path
end

local function path_outside(value)
    if value:sub(1, 1) ~= "/" then return nil, "must be an absolute path" end
    if (value .. "/"):find("/../", 1, true) then return nil, "must not contain .." end
    return value
end

local function one_of(...)
    local known = { ... }
    return function(value)
        for _, word in ipairs(known) do if word == value then return value end end
        return nil, "must be " .. table.concat(known, " or ")
    end
end

local function size(value)
    local bytes = bytes_of(value)
    if not bytes or bytes < 2 ^ 20 then return nil, "must be a size of at least 1MiB, as in 20GiB or 20GB" end
    return bytes
end

local function job_name(value)
    if #value <= 48 and value:find("^%w[%w._-]*$") then return value end
    return nil, "must be 1 to 48 letters, digits, '.', '_' or '-', beginning with a letter or digit"
end

local function any(value) return value end

-- What a line may say, by its first word: the keys, and those that it needs.
local lines = {
    [""] = { keys = { pool = any, capacity = size, persist = path_outside, job = job_name }, needs = {} },
    jobdw = {
        keys = { pool = any, capacity = size, type = one_of("scratch"), access_mode = one_of("striped", "private") },
        needs = { "capacity" },
    },
    stage_in = {
        keys = { type = one_of("file", "directory"), source = path_outside, destination = path_in_store },
        needs = { "source", "destination" },
    },
    stage_out = {
        keys = { type = one_of("file", "directory"), source = path_in_store, destination = path_outside },
        needs = { "source", "destination" },
    },
}

local function names(table_of_names)
    local list = {}
    for name in pairs(table_of_names) do if name ~= "" then list[#list + 1] = name end end
    table.sort(list)
    return table.concat(list, ", ")
end

-- Reads one line without its directive into `plan`. Returns what is wrong with it.
local function read_line(text, plan)
    local kind, values = "", {}
    for word in text:gmatch("%S+") do
        local key, value = word:match("^([%w_]+)=(.*)$")
        if not key then
            if not lines[word] or kind ~= "" or next(values) then
                return "unknown word '" .. word .. "'; known are KEY=VALUE, " .. names(lines)
            end
            kind = word
        else
            local read = lines[kind].keys[key]
            if not read then return "unknown key '" .. key .. "'; known are " .. names(lines[kind].keys) end
            if values[key] then return key .. "= is there twice" end
            local result, wrong = read(value)
            if not result then return key .. "=" .. value .. ": " .. wrong end
            values[key] = result
        end
    end
    for _, key in ipairs(lines[kind].needs) do
        if not values[key] then return key .. "= is missing" end
    end
    if kind == "stage_in" or kind == "stage_out" then
        plan.copies[#plan.copies + 1] =
            table.concat({ kind, values.type or "any", values.source, values.destination }, "\t")
        return nil
    end
    for key, value in pairs(values) do
        if plan[key] and key ~= "pool" then return key .. "= was given before" end
        plan[key] = value
    end
    return nil
end

-- Returns what the script asks for, or nil and what is wrong.
local function read_script(path)
    local file = io.open(path, "r")
    if not file then return nil, "the script cannot be read" end
    local plan, number = { copies = {} }, 0
    for line in file:lines() do
        number = number + 1
        if line ~= "" and line:sub(1, 1) ~= "#" then break end
        local directive, text = line:match("^#(CAIRN)%s(.*)$")
        if not directive then directive, text = line:match("^#(DW)%s(.*)$") end
        if directive then
            local wrong = read_line(text, plan)
            if wrong then
                file:close()
                return nil, "line " .. number .. ", #" .. directive .. ": " .. wrong
            end
        end
    end
    file:close()
    if not plan.capacity then return nil, "no line says how much: #CAIRN pool=cairn capacity=20GiB" end
    return plan
end

local function quoted(text) return "'" .. tostring(text):gsub("'", "'\\''") .. "'" end

-- Runs an action of `stage`. Returns Slurm's result and the last line that it printed.
local function stage(...)
    local words = {}
    for _, word in ipairs({ ... }) do words[#words + 1] = quoted(word) end
    local pipe = io.popen(quoted(here .. "/stage") .. " " .. table.concat(words, " ") .. " 2>&1 </dev/null; echo $?")
    local last, code = "", "1"
    for line in pipe:lines() do last, code = code, line end
    pipe:close()
    if code == "0" then return slurm.SUCCESS, "" end
    return slurm.ERROR, (last:gsub("^cairn: ", "cairn: "))
end

function slurm_bb_job_process(job_script)
    local plan, wrong = read_script(job_script)
    if not plan then return slurm.ERROR, wrong end
    return slurm.SUCCESS
end

function slurm_bb_pools()
    local gib = 0
    local settings = io.open(here .. "/settings", "r")
    if settings then
        for line in settings:lines() do gib = line:match("^pool_gib=(%d+)") or gib end
        settings:close()
    end
    return slurm.SUCCESS, '{"pools":[{"id":"cairn","quantity":' .. gib .. ',"granularity":1073741824}]}'
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local plan, wrong = read_script(job_script)
    if not plan then return slurm.ERROR, wrong end
    local mib = string.format("%d", math.ceil(plan.capacity / 2 ^ 20))
    return stage("setup", job_id, uid, gid, mib, plan.job or "slurm-" .. job_id, plan.persist or "",
        plan.access_mode or "striped", table.concat(plan.copies, "\n"))
end

function slurm_bb_data_in(job_id) return stage("data_in", job_id) end
function slurm_bb_data_out(job_id) return stage("data_out", job_id) end
function slurm_bb_job_teardown(job_id) return stage("teardown", job_id) end

-- Since Slurm 24.05: data_in and data_out have returned when the work is done.
function slurm_bb_test_data_in() return slurm.SUCCESS, "" end
function slurm_bb_test_data_out() return slurm.SUCCESS, "" end

function slurm_bb_real_size() return slurm.SUCCESS, "" end
function slurm_bb_pre_run() return slurm.SUCCESS, "" end
function slurm_bb_post_run() return slurm.SUCCESS, "" end

function slurm_bb_paths(job_id, job_script, path_file)
    local state = "/var/lib/cairn-bb"
    for line in io.lines(here .. "/settings") do state = line:match("^state=(%S+)") or state end
    local from = io.open(state .. "/" .. job_id .. "/environment", "r")
    if not from then return slurm.ERROR, "cairn: what setup wrote is gone" end
    local text = from:read("*a")
    from:close()
    local to = io.open(path_file, "w")
    if not to then return slurm.ERROR, "cairn: the environment of the job cannot be written" end
    to:write(text)
    to:close()
    return slurm.SUCCESS, ""
end

-- scontrol show bbstat [JOB]
function slurm_bb_get_status(...)
    local words = { ... }
    local pipe = io.popen(quoted(here .. "/stage") .. " status " .. quoted(words[#words] or "") .. " 2>&1 </dev/null")
    local text = pipe:read("*a")
    pipe:close()
    return slurm.SUCCESS, text
end

return slurm.SUCCESS
