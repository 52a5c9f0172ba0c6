-- job_submit.lua, beside slurm.conf (JobSubmitPlugins=lua). If there is one already, call
-- complete_directives from it.
--
-- Slurm refuses a capacity without pool=, and knows one directive only. So "#CAIRN capacity=20GiB"
-- gets its pool, and "#DW" becomes "#CAIRN". Looks only at the comments at the head of a script, as
-- Slurm does.

local function completed(text)
    local lines, is_head = {}, true
    for line in (text .. "\n"):gmatch("(.-)\n") do
        if line ~= "" and line:sub(1, 1) ~= "#" then is_head = false end
        if is_head then
            line = line:gsub("^#DW(%s)", "#CAIRN%1")
            if line:find("^#CAIRN%s.*capacity=") and not line:find("%spool=") then
                line = line:gsub("capacity=", "pool=cairn capacity=", 1)
            end
        end
        lines[#lines + 1] = line
    end
    return table.concat(lines, "\n")
end

-- Both are there: the script of sbatch, and what --bb and --bbf say.
local function complete_directives(job)
    for _, field in ipairs({ "script", "burst_buffer" }) do
        local text = job[field]
        if text and completed(text) ~= text then job[field] = completed(text) end
    end
end

function slurm_job_submit(job, partitions, user)
    complete_directives(job)
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
    return slurm.SUCCESS
end

return slurm.SUCCESS
