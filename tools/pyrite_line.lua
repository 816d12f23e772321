-- A Wireshark dissector for Pyrite's line protocol (docs/protocol.md), over TCP and UDP.
--
--   wireshark -X lua_script:tools/pyrite_line.lua
--   tshark -X lua_script:tools/pyrite_line.lua -i lo -f 'port 1373 or port 1234'
--
-- or copy it to the folder for personal Lua plugins that Help > About Wireshark > Folders names.
-- For other ports: -d tcp.port==5555,pyrite_line

local line = Proto("pyrite_line", "Pyrite line protocol")

local command = ProtoField.string("pyrite_line.command", "Command")
local words = ProtoField.string("pyrite_line.words", "Words")
local topic = ProtoField.string("pyrite_line.topic", "Topic")
local number = ProtoField.uint64("pyrite_line.number", "Number")
local length = ProtoField.uint32("pyrite_line.length", "Payload length")
local payload = ProtoField.bytes("pyrite_line.payload", "Payload")
local code = ProtoField.string("pyrite_line.error", "Error")
line.fields = { command, words, topic, number, length, payload, code }

local malformed = ProtoExpert.new(
    "pyrite_line.malformed", "This is no frame", expert.group.MALFORMED, expert.severity.ERROR)
line.experts = { malformed }

-- Which word is the topic or filter.
local topics = {
    Publish = 2, Message = 2, Subscribe = 2, SubAck = 2, PubAck = 2, Unsubscribe = 2,
    List = 2, Create = 2, Delete = 2, Register = 3,
}
local names = {}
for _, name in ipairs {
    "Connect", "Publish", "Subscribe", "Unsubscribe", "Message", "Ack", "SubAck", "PubAck", "Ping", "Pong",
    "List", "Create", "Delete", "Register", "Pull", "Disconnect", "Error",
} do
    names[name:lower()] = name
end

local function unescaped(word)
    return (word:gsub("%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end))
end

-- The length of the payload that follows a line, or nil if none does.
local function payload_length(name, list, from_server)
    if name == "Publish" or name == "Message" then
        return tonumber(list[3])
    elseif name == "List" and from_server then
        return tonumber(list[2])
    end
    return nil
end

local function describe(buffer, pinfo, tree, at, line_size, list, name, size)
    local whole = line_size + 1
    if size then whole = whole + size + 1 end
    local branch = tree:add(line, buffer(at, math.min(whole, buffer:len() - at)))
    local text = table.concat(list, " ")
    branch:append_text(": " .. text)
    branch:add(command, buffer(at, #list[1]), name or list[1])
    branch:add(words, buffer(at, line_size), text)
    if not name then
        branch:add_proto_expert_info(malformed, "unknown command")
    end
    local place = topics[name]
    if place and list[place] and not (name == "List" and size) then
        branch:add(topic, buffer(at, line_size), unescaped(list[place]))
    end
    for index = 2, #list do
        local found = list[index]:match("^n=(%d+)$")
        if not found and name == "Ack" then found = list[index]:match("^(%d+)$") end
        if found then branch:add(number, buffer(at, line_size), UInt64(found)) end
    end
    if name == "Error" then branch:add(code, buffer(at, line_size), list[2] or "") end
    if size then
        branch:add(length, buffer(at, line_size), size)
        if size > 0 then branch:add(payload, buffer(at + line_size + 1, size)) end
    end
    if tostring(pinfo.cols.info) ~= "" then pinfo.cols.info:append(", ") end
    pinfo.cols.info:append(text)
end

function line.dissector(buffer, pinfo, tree)
    local datagram = pinfo.port_type == 3
    local from_server = pinfo.src_port == pinfo.match_uint
    local raw = buffer:raw()
    local at, shown = 0, false
    while at < buffer:len() do
        local stop = raw:find("\n", at + 1, true)
        if not stop and datagram then stop = #raw + 1 end
        if not stop then
            pinfo.desegment_offset = at
            pinfo.desegment_len = DESEGMENT_ONE_MORE_SEGMENT
            return buffer:len()
        end
        local text = raw:sub(at + 1, stop - 1)
        local list = {}
        for word in text:gmatch("%S+") do list[#list + 1] = word end
        if #list == 0 then
            at = stop
        else
            local name = names[list[1]:lower()]
            local size = payload_length(name, list, from_server)
            local finish = stop
            if size then finish = stop + size + 1 end
            if size and finish > #raw and not datagram then
                pinfo.desegment_offset = at
                pinfo.desegment_len = finish - #raw
                return buffer:len()
            end
            if size and stop + size > #raw then size = math.max(0, #raw - stop) end
            if not shown then
                pinfo.cols.protocol = "Pyrite"
                pinfo.cols.info = ""
                shown = true
            end
            describe(buffer, pinfo, tree, at, stop - 1 - at, list, name, size)
            at = finish
        end
    end
    return buffer:len()
end

DissectorTable.get("tcp.port"):add(1373, line)
DissectorTable.get("udp.port"):add(1234, line)
