-- Wireshark dissector of netoffload's offload blocks: IPComp (RFC 3173) with CPI 0xF128, over IPv4 and IPv6, and in UDP.
--
-- SPDX-License-Identifier: Apache-2.0
--
--   tshark -X lua_script:netoffload.lua -r FILE -T fields -e netoffload.codec -e netoffload.ratio -e tcp.seq
--
-- netoffload/wire/offload.py and encapsulation.py define the layout. Blocks are decoded like in the receiving NIC. The TCP segment
-- that its host gets goes to Wireshark's TCP dissector: so sequence analysis and streams show the data that the programs see.
-- If a block cannot be decoded (cut short by the capture, a codec of a later version, a field that the NIC refuses, tags that
-- contradict the length), the TCP dissector gets only the header.
--
-- A block's CRC is combined with a nonce of its direction. The receiving NIC sends the nonce in an option of a SYN. If the capture
-- begins later, the nonce is taken from two blocks in a row whose CRC is right with it.
--
-- Other IPComp goes to Wireshark's own IPComp dissector. The CRC check is a slow loop over octets; a preference turns it off.

local PROTO_IPCOMP = 108
local CPI_OFFLOAD = 0xF128
local UDP_PORT = 0xF128
local ENTRY_VERSION = 1
local ENTRY_LEN = 4
local IPCOMP_LEN = 4
local BLOCK_LEN = 16
local TCP_AT = IPCOMP_LEN + BLOCK_LEN
local TCP_MIN_LEN = 20
local VERSION = 3
local HAS_MAC = 1
local MAC_LEN = 16
local WORD = { kind = 253, len = 12, exid = "NO" }
local WANTS_MAC = 2
local BOUND_K_MIN, BOUND_K_MAX = 1, 16
local LANES = 8
local TAG_OCTETS = { [0] = 0, 1, 2, 4 }
local GROUP = 64
local TAG_OF_CODE = { [0x80] = 2, [0x00] = 3 }
local WIDTH_BITS, WIDTH_MAX = 3, 8
local ZEROS, RAW, CODED = 0, 1, 2
local FLOAT32, NARROW, BF16 = 0, 1, 2
local EXACT_WIDTH_MAX = 6
-- Tables by a codec's number: its name; for codecs with tags, the weight of the last bit of the 8-bit form, 2^-(places + per_k k);
-- for codecs with groups, the number of the codec with tags that has the same values; codecs that keep every bit; for the others, how many bits they keep.
-- scripts/generate makes what follows from netoffload/codec_specs.py.
local CODECS = { [0] = "none", [1] = "inceptionn", [2] = "bounded", [3] = "truncate16", [4] = "truncate22", [5] = "truncate24", [7] = "packed", [8] = "exact" }
local PLACES8 = { [1] = { places = 7, per_k = 0 }, [2] = { places = -1, per_k = 1 } }
local PACKED = { [7] = 2 }
local EXACT = { [8] = true }
local KEPT_BITS = { [0] = 32, [3] = 16, [4] = 10, [5] = 8 }
-- end of what scripts/generate makes

local netoffload = Proto("netoffload", "netoffload offload block")

local f = {
    version = ProtoField.uint8("netoffload.version", "Version", base.DEC, nil, 0xF0),
    codec = ProtoField.uint8("netoffload.codec", "Codec", base.DEC, CODECS, 0x0F),
    bound_k = ProtoField.uint8("netoffload.bound_k", "Error bound 2^-k, k", base.DEC),
    head = ProtoField.uint8("netoffload.head", "Raw octets before the floats", base.DEC, nil, 0xF0),
    tail = ProtoField.uint8("netoffload.tail", "Raw octets behind the floats", base.DEC, nil, 0x0F),
    flags = ProtoField.uint8("netoffload.flags", "Flags", base.HEX),
    payload_len = ProtoField.uint16("netoffload.payload_len", "Payload length at the hosts", base.DEC),
    gso_size = ProtoField.uint16("netoffload.gso_size", "GSO size", base.DEC),
    half_bursts = ProtoField.uint16("netoffload.half_bursts", "Bursts in the first half", base.DEC),
    half_len = ProtoField.uint16("netoffload.half_len", "Octets in the first half", base.DEC),
    crc = ProtoField.uint32("netoffload.crc", "CRC32C", base.HEX),
    crc_ok = ProtoField.bool("netoffload.crc.ok", "CRC is right"),
    nonce = ProtoField.uint32("netoffload.nonce", "Nonce of the receiving NIC", base.HEX),
    mac = ProtoField.bytes("netoffload.mac", "MAC"),
    wire_len = ProtoField.uint16("netoffload.wire_len", "Payload length on the wire", base.DEC),
    ratio = ProtoField.float("netoffload.ratio", "Ratio"),
    floats = ProtoField.uint32("netoffload.floats", "Floats", base.DEC),
    class_0 = ProtoField.float("netoffload.class_0", "Share of floats that took 0 bits"),
    class_8 = ProtoField.float("netoffload.class_8", "Share of floats that took 8 bits"),
    class_16 = ProtoField.float("netoffload.class_16", "Share of floats that took 16 bits"),
    class_32 = ProtoField.float("netoffload.class_32", "Share of floats that took 32 bits"),
    payload = ProtoField.bytes("netoffload.payload", "Payload"),
}
for _, field in pairs(f) do
    table.insert(netoffload.fields, field)
end
local CLASSES = { [0] = f.class_0, f.class_8, f.class_16, f.class_32 }

local bad_crc = ProtoExpert.new("netoffload.crc.bad", "CRC32C is wrong", expert.group.CHECKSUM, expert.severity.ERROR)
local malformed = ProtoExpert.new(
    "netoffload.malformed", "Not a block that a NIC would take", expert.group.MALFORMED, expert.severity.ERROR
)
local unknown_nonce = ProtoExpert.new(
    "netoffload.crc.unknown", "CRC32C is not checked: the capture does not say the nonce yet", expert.group.CHECKSUM,
    expert.severity.NOTE
)
netoffload.experts = { bad_crc, malformed, unknown_nonce }
netoffload.prefs.check_crc = Pref.bool("Check the CRC", true, "Compute the CRC32C of every block.")

local field_of_source = { ip = Field.new("ip.src"), ipv6 = Field.new("ipv6.src") }
local field_of_target = { ip = Field.new("ip.dst"), ipv6 = Field.new("ipv6.dst") }
local ip_headers = Field.new("ip")
local fragment_headers = Field.new("ipv6.fraghdr.nxt")
local tcp_headers = Field.new("tcp")
local IPV4_SOURCE_AT = 12

-- Lua 5.2 has bit32; older versions have Wireshark's bit; newer versions have operators that older ones cannot parse.
local bitwise = bit32 or bit or load([[return {
    band = function(a, b) return a & b end,
    bxor = function(a, b) return a ~ b end,
    rshift = function(a, n) return a >> n end,
}]])()
local band, bxor, rshift = bitwise.band, bitwise.bxor, bitwise.rshift

-- CRC32C (RFC 3720, appendix B.4), by table.
local crc_table = {}
for octet = 0, 255 do
    local crc = octet
    for _ = 1, 8 do
        local low = band(crc, 1)
        crc = rshift(crc, 1)
        if low == 1 then
            crc = bxor(crc, 0x82F63B78)
        end
    end
    crc_table[octet] = crc
end

local function crc32c(octets)
    local crc = 0xFFFFFFFF
    for index = 1, #octets do
        local low = band(bxor(crc, octets:byte(index)), 0xFF)
        crc = bxor(rshift(crc, 8), crc_table[low])
    end
    return bxor(crc, 0xFFFFFFFF) % 2 ^ 32 -- not negative, with any of the libraries
end

-- The addresses of the innermost IP header: the block is its payload.
local function addresses()
    local found
    for _, family in ipairs({ "ip", "ipv6" }) do
        local sources, targets = { field_of_source[family]() }, { field_of_target[family]() }
        local source, target = sources[#sources], targets[#targets]
        if source and target and (not found or source.offset > found.offset) then
            found = { offset = source.offset, octets = source.range:raw() .. target.range:raw() }
        end
    end
    return found and found.octets
end

-- Whether the innermost IP header belongs to a whole datagram (Wireshark reassembles fragments, a NIC does not), and its
-- checksum is right; IPv6 headers have no checksum.
local function ip_header_is_taken()
    local headers, others, fragments = { ip_headers() }, { field_of_source.ipv6() }, { fragment_headers() }
    local header, other, fragment = headers[#headers], others[#others], fragments[#fragments]
    if not header or other and other.offset > header.offset + IPV4_SOURCE_AT then
        return not fragment or fragment.offset < other.offset
    end
    local octets, sum = header.range:raw(), 0
    if octets:byte(7) % 0x40 ~= 0 or octets:byte(8) ~= 0 then
        return false
    end
    for at = 1, #octets - 1, 2 do
        sum = sum + 256 * octets:byte(at) + octets:byte(at + 1)
    end
    while sum > 0xFFFF do
        sum = sum % 0x10000 + math.floor(sum / 0x10000)
    end
    return sum == 0xFFFF
end

-- Whether the flags of the TCP header, if captured, are allowed in a block: no SYN, RST, URG, CWR.
local function flags_are_plain(tvb)
    return tvb:len() < TCP_AT + 14 or band(tvb(TCP_AT + 13, 1):uint(), 0xA6) == 0
end

-- Whether a NIC takes a block with these headers, if its payload is right.
local function is_taken(tvb)
    local bound_k = tvb(5, 1):uint()
    return tvb(1, 1):uint() == 0
        and tvb(7, 1):uint() % 2 == tvb(7, 1):uint()
        and tvb(8, 2):uint() ~= 0
        and bound_k >= BOUND_K_MIN
        and bound_k <= BOUND_K_MAX
        and flags_are_plain(tvb)
        and ip_header_is_taken()
end

local function mac_len_of(tvb)
    return band(tvb(7, 1):uint(), HAS_MAC) ~= 0 and MAC_LEN or 0
end

-- The known nonces, by direction: addresses and ports from the headers. And the result of each block's check, because Wireshark
-- dissects a frame again whenever it shows the frame, in any order.
local known, guessed, said = {}, {}, {}

function netoffload.init()
    known, guessed, said = {}, {}, {}
end

-- The other direction of the connection with these addresses and ports.
local function reversed(from, ports)
    local half = #from / 2
    return from:sub(half + 1) .. from:sub(1, half) .. ports:sub(3, 4) .. ports:sub(1, 2)
end

-- Return the nonce with which the CRC of a whole block is right. While the CRC is computed, its field holds protocol and length.
-- The CRC does not cover a MAC.
local function nonce_of(tvb, from)
    local length = tvb:len() - mac_len_of(tvb)
    if length < TCP_AT + TCP_MIN_LEN then
        return nil
    end
    local covered = string.char(0, PROTO_IPCOMP, math.floor(length / 256), length % 256)
    local octets = tvb:raw(0, 16) .. covered .. tvb:raw(20, length - 20)
    return bxor(crc32c(from .. octets), tvb(16, 4):uint()) % 2 ^ 32
end

-- Return whether the CRC of a block of this direction is right: "ok", "bad", or "unknown" without the nonce.
local function judge(flow, found)
    if known[flow] then
        return known[flow] == found and "ok" or "bad"
    elseif guessed[flow] == found then
        known[flow] = found
        return "ok"
    end
    guessed[flow] = found
    return "unknown"
end

-- Return the same result for a block that was captured whole, and its nonce; nil for other blocks.
local function judge_block(tvb, pinfo)
    local from = addresses()
    local found = from and nonce_of(tvb, from)
    if not found then
        return nil
    end
    local place = pinfo.number .. "/" .. tvb:offset()
    said[place] = said[place] or judge(from .. tvb:raw(TCP_AT, 4), found)
    return said[place], found
end

-- Return the four octets of a float, from sign, magnitude and the weight of the magnitude's last bit.
local function fixed_point(sign, magnitude, unit)
    if magnitude == 0 then
        return "\0\0\0\0"
    end
    return Struct.pack("<f", (sign == 1 and -1 or 1) * magnitude * unit)
end

-- Return one float's octets as the host gets them.
local function decode_lane(tag, octets, at, codec, bound_k)
    if tag == 0 then
        return "\0\0\0\0"
    elseif tag == 1 then
        local code = octets:byte(at)
        local unit = 2 ^ -(PLACES8[codec].places + PLACES8[codec].per_k * bound_k)
        return fixed_point(math.floor(code / 128), code % 128, unit)
    elseif tag == 2 then
        local code = octets:byte(at) + 256 * octets:byte(at + 1)
        return fixed_point(math.floor(code / 32768), code % 32768, 2 ^ -15)
    end
    return octets:sub(at, at + 3)
end

-- Decode the bursts of a codec with tags: the floats' octets and how many floats each tag has, or nil.
local function decode_tagged(bursts, count, block)
    local lanes, classes, at = {}, { [0] = 0, 0, 0, 0 }, 1
    for first = 0, count - 1, LANES do
        if first == LANES * block.half_bursts and at ~= block.half_len + 1 then
            return nil
        end
        if at + 1 > #bursts then
            return nil
        end
        local word = bursts:byte(at) + 256 * bursts:byte(at + 1)
        at = at + 2
        for lane = 0, LANES - 1 do
            local tag = math.floor(word / 4 ^ lane) % 4
            if first + lane < count then
                if at + TAG_OCTETS[tag] - 1 > #bursts then
                    return nil
                end
                table.insert(lanes, decode_lane(tag, bursts, at, block.codec, block.bound_k))
                classes[tag] = classes[tag] + 1
                at = at + TAG_OCTETS[tag]
            elseif tag ~= 0 then
                return nil
            end
        end
    end
    if count == LANES * block.half_bursts and at ~= block.half_len + 1 or at ~= #bursts + 1 then
        return nil
    end
    return table.concat(lanes), classes
end

-- Return width bits of octets as a number; bit counts from 0, the lowest bit of the first octet.
local function bits_at(octets, bit, width)
    local at, shift, number = math.floor(bit / 8) + 1, bit % 8, 0
    for octet = 0, math.ceil((shift + width) / 8) - 1 do
        number = number + octets:byte(at + octet) * 256 ^ octet
    end
    return math.floor(number / 2 ^ shift) % 2 ^ width
end

-- Read the masks of the group at a place, which ends at stop or sooner. Return the places of its floats that are not 0, and the place
-- behind the masks; nil if no encoder writes such masks.
local function read_masks(bursts, at, stop, floats)
    if at > stop then
        return nil
    end
    local present, there = bursts:byte(at), {}
    at = at + 1
    for burst = 0, GROUP / LANES - 1 do
        if band(present, 2 ^ burst) ~= 0 then
            local mask = at <= stop and bursts:byte(at) or 0
            if mask == 0 then
                return nil
            end
            for lane = 0, LANES - 1 do
                if band(mask, 2 ^ lane) ~= 0 then
                    table.insert(there, LANES * burst + lane)
                end
            end
            at = at + 1
        end
    end
    if #there > 0 and there[#there] >= floats then
        return nil
    end
    return there, at
end

-- Return the fields behind the width at a place as 8-bit codes, and the place behind the fields; nil if the fields are wider than
-- needed, or bits behind them are not 0.
local function read_fields(bursts, at, stop, count)
    if at > stop then
        return nil
    end
    local width = bursts:byte(at) % WIDTH_MAX + 1
    local first = width == WIDTH_MAX and 8 or WIDTH_BITS
    local bits = first + width * count
    local behind = at + math.ceil(bits / 8)
    if behind - 1 > stop then
        return nil
    end
    local octets, codes, largest = bursts:sub(at, behind - 1), {}, 0
    for index = 0, count - 1 do
        local field = bits_at(octets, first + width * index, width)
        largest = math.max(largest, field)
        table.insert(codes, string.char((math.floor(field / 2) + 1) % 128 + 128 * (field % 2)))
    end
    local fill = bits_at(octets, bits, 8 * #octets - bits) + bits_at(octets, WIDTH_BITS, first - WIDTH_BITS)
    if fill ~= 0 or width > 1 and largest < 2 ^ (width - 1) then
        return nil
    end
    return table.concat(codes), behind
end

-- Decode the group at a place, which ends at stop or sooner: append its floats' octets to lanes, count them in classes, and
-- return the place behind it; nil if no encoder writes such a group.
local function decode_group(bursts, at, stop, floats, block, lanes, classes)
    local there, codes
    there, at = read_masks(bursts, at, stop, floats)
    if not there then
        return nil
    end
    codes, at = read_fields(bursts, at, stop, #there)
    if not codes then
        return nil
    end
    local octets, tags = {}, {}
    for wanted = 1, 3 do
        for index, place in ipairs(there) do
            local tag = TAG_OF_CODE[codes:byte(index)] or 1
            if tag == wanted then
                local source, from = codes, index
                if tag ~= 1 then
                    source, from, at = bursts, at, at + TAG_OCTETS[tag]
                end
                if at - 1 > stop then
                    return nil
                end
                octets[place] = decode_lane(tag, source, from, PACKED[block.codec], block.bound_k)
                tags[place] = tag
            end
        end
    end
    for place = 0, floats - 1 do
        local tag = tags[place] or 0
        table.insert(lanes, octets[place] or decode_lane(0))
        classes[tag] = classes[tag] + 1
    end
    return at
end

-- Decode the run at a place of a half: append zeros to lanes, count them in classes, and return the number of groups; nil if the
-- half does not have as many floats left.
local function decode_run(bursts, at, left, lanes, classes)
    local groups = bursts:byte(at + 1) + 1
    if GROUP * (groups - 1) >= left then
        return nil
    end
    local floats = math.min(GROUP * groups, left)
    table.insert(lanes, decode_lane(0):rep(floats))
    classes[0] = classes[0] + floats
    return groups
end

-- Decode the groups and runs of a codec with groups: the floats' octets and how many floats each tag has, or nil. Each half of a
-- block with a mark begins with a group or a run, and ends with its last float. No run follows another one, because the longest run,
-- 256 groups, fills a block.
local function decode_groups(bursts, count, block)
    local lanes, classes, at = {}, { [0] = 0, 0, 0, 0 }, 1
    local halves = { { LANES * block.half_bursts, block.half_len }, { count - LANES * block.half_bursts, #bursts } }
    for _, half in ipairs(halves) do
        local left, stop, may_run = half[1], half[2], true
        while left > 0 do
            local groups = 1
            if at < stop and bursts:byte(at) == 0 then
                groups = may_run and decode_run(bursts, at, left, lanes, classes)
                at, may_run = at + 2, false
            else
                at, may_run = decode_group(bursts, at, stop, math.min(GROUP, left), block, lanes, classes), true
            end
            if not at or not groups then
                return nil
            end
            left = left - GROUP * groups
        end
        if at ~= stop + 1 then
            return nil
        end
    end
    return table.concat(lanes), classes
end

-- Read what says where the values of a group of exact are that are not 0, and their exponents, behind its head: a table by place, how
-- many they are, and the place behind; nil if the payload ends.
local function read_exponents(bursts, at, stop, values, has_mask, width)
    local mask_at, top, exponents, count = at + 1, bursts:byte(at), {}, 0
    at = mask_at + (has_mask and math.ceil(values / 8) or 0)
    if at - 1 > stop then
        return nil
    end
    for place = 0, values - 1 do
        if not has_mask or bits_at(bursts, 8 * (mask_at - 1) + place, 1) == 1 then
            exponents[place] = count
            count = count + 1
        end
    end
    local planes_at, plane_len = at, math.ceil(count / 8)
    at = at + width * plane_len
    if count == 0 or at - 1 > stop then
        return nil
    end
    for place = 0, values - 1 do
        local distance = 0
        for bit = 0, exponents[place] and width - 1 or -1 do
            distance = distance + bits_at(bursts, 8 * (planes_at - 1 + bit * plane_len) + exponents[place], 1) * 2 ^ bit
        end
        if not exponents[place] then
            distance = 0
        elseif width > 0 and distance == 2 ^ width - 1 then
            if at > stop then
                return nil
            end
            exponents[place] = bursts:byte(at)
            at = at + 1
        else
            exponents[place] = (top - distance) % 256
        end
    end
    return exponents, count, at
end

-- Decode the group of exact at a place, of at most left words: append its octets to lanes, count its words in classes, and return the
-- place behind it and its words; nil if there is no group.
local function decode_exact_group(bursts, at, stop, left, lanes, classes)
    local head = at <= stop and bursts:byte(at) or 255
    local kind, form, width = math.floor(head / 64), math.floor(head / 16) % 4, head % 8
    local words = math.min(left, form == BF16 and GROUP / 2 or GROUP)
    if kind > CODED or form > BF16 or width > EXACT_WIDTH_MAX or kind < CODED and head % 32 ~= 0 then
        return nil
    end
    at = at + 1
    local count = words
    if kind == ZEROS then
        count = 0
        table.insert(lanes, ("\0"):rep(4 * words))
    elseif kind == RAW then
        table.insert(lanes, bursts:sub(at, at + 4 * words - 1))
        at = at + 4 * words
    else
        local exponents
        local values, rest_len = form == BF16 and 2 * words or words, form == FLOAT32 and 3 or 1
        exponents, count, at = read_exponents(bursts, at, stop, values, math.floor(head / 8) % 2 == 1, width)
        if not exponents or at + rest_len * count - 1 > stop then
            return nil
        end
        for place = 0, values - 1 do
            local number = 0
            if exponents[place] then
                number = exponents[place] * 256 ^ rest_len + bits_at(bursts, 8 * (at - 1), 8 * rest_len)
                number = math.floor(number / 2) + number % 2 * 2 ^ (8 * rest_len + 7)
                at = at + rest_len
            end
            table.insert(lanes, Struct.pack(form == BF16 and "<I2" or "<I4", form == NARROW and 65536 * number or number))
        end
    end
    if at - 1 > stop then
        return nil
    end
    if form == BF16 then
        classes[2] = classes[2] + words
    else
        classes[0], classes[3] = classes[0] + words - count, classes[3] + count
    end
    return at, words
end

-- Decode the groups of exact: the floats' octets and their classes, or nil.
local function decode_exact(bursts, count, block)
    local lanes, classes, at = {}, { [0] = 0, 0, 0, 0 }, 1
    local halves = { { LANES * block.half_bursts, block.half_len }, { count - LANES * block.half_bursts, #bursts } }
    for _, half in ipairs(halves) do
        local left, stop, words = half[1], half[2], nil
        while left > 0 do
            at, words = decode_exact_group(bursts, at, stop, left, lanes, classes)
            if not at then
                return nil
            end
            left = left - words
        end
        if at ~= stop + 1 then
            return nil
        end
    end
    return table.concat(lanes), classes
end

-- Decode the bursts of a codec without tags: the most significant bits of every float, lane 0 first.
local function decode_fixed(bursts, count, kept_bits)
    if #bursts ~= math.ceil(count / LANES) * kept_bits then
        return nil
    end
    local lanes = {}
    for index = 0, count - 1 do
        table.insert(lanes, Struct.pack("<I4", bits_at(bursts, kept_bits * index, kept_bits) * 2 ^ (32 - kept_bits)))
    end
    return table.concat(lanes)
end

-- Return the payload at the hosts and the classes of its floats; nil if a NIC would not decode it.
local function decode(block, payload)
    local raw = block.head + block.tail
    local floats_len = block.payload_len - raw
    if block.head > 3 or block.tail > 3 or floats_len < 4 * LANES * block.half_bursts or floats_len % 4 ~= 0
        or #payload < raw + block.half_len then
        return nil
    end
    local bursts = payload:sub(block.head + 1, #payload - block.tail)
    local octets, classes
    if PLACES8[block.codec] then
        octets, classes = decode_tagged(bursts, floats_len / 4, block)
    elseif PACKED[block.codec] then
        octets, classes = decode_groups(bursts, floats_len / 4, block)
    elseif EXACT[block.codec] then
        octets, classes = decode_exact(bursts, floats_len / 4, block)
    elseif KEPT_BITS[block.codec] and block.half_len == block.half_bursts * KEPT_BITS[block.codec] then
        octets = decode_fixed(bursts, floats_len / 4, KEPT_BITS[block.codec])
    end
    if not octets then
        return nil
    end
    return payload:sub(1, block.head) .. octets .. payload:sub(#payload - block.tail + 1), classes
end

local function to_bytes(octets)
    return ByteArray.new(octets, true)
end

local tcp = Dissector.get("tcp")
local ip_protocols = DissectorTable.get("ip.proto")
local other_ipcomp = ip_protocols:get_dissector(PROTO_IPCOMP) or Dissector.get("data")

-- Call one of Wireshark's dissectors, so that malformed octets do not show as an error of this script.
local function call(dissector, tvb, pinfo, root)
    local went_well = pcall(dissector.call, dissector, tvb, pinfo, root)
    if not went_well then
        root:add_proto_expert_info(malformed)
    end
end

-- Pass the segment to Wireshark's TCP dissector: with its payload if that is known, else only the header.
local function dissect_segment(tvb, tcp_len, payload, pinfo, root)
    local segment = to_bytes(tvb:raw(TCP_AT, tcp_len) .. (payload or "")):tvb("TCP segment at the host")
    call(tcp, segment, pinfo, root)
end

local function add_header(tree, tvb)
    tree:add(f.version, tvb(4, 1))
    tree:add(f.codec, tvb(4, 1))
    tree:add(f.bound_k, tvb(5, 1))
    tree:add(f.head, tvb(6, 1))
    tree:add(f.tail, tvb(6, 1))
    tree:add(f.flags, tvb(7, 1))
    tree:add(f.payload_len, tvb(8, 2))
    tree:add(f.gso_size, tvb(10, 2))
    tree:add(f.half_bursts, tvb(12, 2))
    tree:add(f.half_len, tvb(14, 2))
    return tree:add(f.crc, tvb(16, 4))
end

-- Check the CRC if this is asked for and possible; return false only if the CRC is wrong.
local function check_crc(tree, tvb, pinfo)
    if not netoffload.prefs.check_crc then
        return true
    end
    local verdict, nonce = judge_block(tvb, pinfo)
    if verdict == "unknown" then
        tree:add_proto_expert_info(unknown_nonce)
    elseif verdict then
        tree:add(f.crc_ok, tvb(16, 4), verdict == "ok"):set_generated()
    end
    if verdict == "ok" then
        tree:add(f.nonce, tvb(16, 4), nonce):set_generated()
    elseif verdict == "bad" then
        tree:add_proto_expert_info(bad_crc)
    end
    return verdict ~= "bad"
end

local function add_classes(tree, range, classes, count)
    tree:add(f.floats, range, count):set_generated()
    if classes and count > 0 then
        for tag = 0, 3 do
            tree:add(CLASSES[tag], range, classes[tag] / count):set_generated()
        end
    end
end

-- Dissect the block in tvb; the capture may have less of it than its length.
local function dissect_block(tvb, announced_len, pinfo, root)
    local tree = root:add(netoffload, tvb(0, TCP_AT))
    local crc_item = add_header(tree, tvb)
    local block = {
        codec = tvb(4, 1):bitfield(4, 4),
        bound_k = tvb(5, 1):uint(),
        head = tvb(6, 1):bitfield(0, 4),
        tail = tvb(6, 1):bitfield(4, 4),
        payload_len = tvb(8, 2):uint(),
        half_bursts = tvb(12, 2):uint(),
        half_len = tvb(14, 2):uint(),
    }
    local is_whole = tvb:len() == announced_len
    local is_sound = is_whole and check_crc(crc_item, tvb, pinfo)
    if not is_taken(tvb) then
        is_sound = false
        tree:add_proto_expert_info(malformed)
    end
    if tvb(0, 1):uint() ~= 6 or tvb(4, 1):bitfield(0, 4) ~= VERSION or tvb:len() < TCP_AT + TCP_MIN_LEN then
        tree:add_proto_expert_info(malformed)
        return
    end
    local tcp_len = 4 * tvb(TCP_AT + 12, 1):bitfield(0, 4)
    local wire_len = announced_len - TCP_AT - tcp_len - mac_len_of(tvb)
    if tcp_len < TCP_MIN_LEN or wire_len < 0 or tvb:len() < TCP_AT + tcp_len then
        tree:add_proto_expert_info(malformed)
        return
    end
    local captured_len = math.min(tvb:len() - TCP_AT - tcp_len, wire_len)
    local rest = captured_len > 0 and tvb(TCP_AT + tcp_len, captured_len) or tvb(TCP_AT, tcp_len)
    tree:add(f.wire_len, rest, wire_len):set_generated()
    if wire_len > 0 then
        local ratio = block.payload_len / wire_len
        tree:add(f.ratio, rest, ratio):set_generated()
        local name = CODECS[block.codec] or ("codec " .. block.codec)
        tree:append_text(string.format(", %s, 2^-%d, %d -> %d octets, ratio %.2f", name, block.bound_k,
            block.payload_len, wire_len, ratio))
        tree:add(f.payload, rest)
    end
    if is_whole and mac_len_of(tvb) > 0 then
        tree:add(f.mac, tvb(announced_len - MAC_LEN, MAC_LEN))
    end
    local payload, classes
    if is_sound then
        payload, classes = decode(block, wire_len > 0 and tvb:raw(TCP_AT + tcp_len, wire_len) or "")
        if payload then
            add_classes(tree, rest, classes, (block.payload_len - block.head - block.tail) / 4)
        else
            tree:add_proto_expert_info(malformed)
        end
    end
    dissect_segment(tvb, tcp_len, payload, pinfo, root)
    pinfo.cols.info:append(string.format(" [%d octets as %d]", block.payload_len, wire_len))
end

function netoffload.dissector(tvb, pinfo, root)
    if tvb:len() < TCP_AT or tvb(2, 2):uint() ~= CPI_OFFLOAD then
        call(other_ipcomp, tvb, pinfo, root)
        return tvb:len()
    end
    dissect_block(tvb, tvb:reported_len(), pinfo, root)
    pinfo.cols.protocol = "netoffload"
    return tvb:len()
end

ip_protocols:add(PROTO_IPCOMP, netoffload)

local in_udp = Proto("netoffload_udp", "netoffload in UDP")
local entry_version = ProtoField.uint8("netoffload_udp.version", "Version", base.DEC)
local entry_reserved = ProtoField.uint8("netoffload_udp.reserved", "Reserved", base.HEX)
local entry_block_len = ProtoField.uint16("netoffload_udp.block_len", "Length of the block", base.DEC)
in_udp.fields = { entry_version, entry_reserved, entry_block_len }
local bad_entry = ProtoExpert.new(
    "netoffload_udp.malformed", "Not an entry that a NIC would take", expert.group.MALFORMED, expert.severity.ERROR
)
in_udp.experts = { bad_entry }

-- Whether a datagram to the port holds blocks.
local function is_ours(tvb)
    return tvb:len() >= ENTRY_LEN + TCP_AT
        and tvb(0, 1):uint() == ENTRY_VERSION
        and tvb(ENTRY_LEN, 4):uint() == 6 * 2 ^ 24 + CPI_OFFLOAD
end

-- Dissect the entry at a place; return where the next one starts, nil after the last one.
local function dissect_entry(tvb, at, pinfo, root)
    local tree = root:add(in_udp, tvb(at, ENTRY_LEN))
    tree:add(entry_version, tvb(at, 1))
    tree:add(entry_reserved, tvb(at + 1, 1))
    tree:add(entry_block_len, tvb(at + 2, 2))
    local block_len = tvb(at + 2, 2):uint()
    local stop = at + ENTRY_LEN + block_len
    if tvb(at, 2):uint() ~= ENTRY_VERSION * 256 or block_len < TCP_AT + TCP_MIN_LEN or stop > tvb:reported_len() then
        tree:add_proto_expert_info(bad_entry)
        return nil
    end
    local captured_len = math.min(stop, tvb:len()) - at - ENTRY_LEN
    if captured_len < TCP_AT then
        return nil
    end
    dissect_block(tvb(at + ENTRY_LEN, captured_len):tvb(), block_len, pinfo, root)
    while stop < tvb:len() and tvb(stop, 1):uint() == 0 do
        stop = stop + 1
    end
    return stop + ENTRY_LEN <= tvb:len() and stop or nil
end

function in_udp.dissector(tvb, pinfo, root)
    if not is_ours(tvb) then
        return 0
    end
    local at = 0
    while at do
        at = dissect_entry(tvb, at, pinfo, root)
    end
    pinfo.cols.protocol = "netoffload"
    return tvb:len()
end

DissectorTable.get("udp.port"):add(UDP_PORT, in_udp)

-- The capability word is an option of SYNs, which Wireshark dissects itself; a postdissector looks for the word afterwards.
local word = Proto("netoffload_word", "netoffload capability word")
local w = {
    version = ProtoField.uint8("netoffload_word.version", "Version of the blocks", base.DEC),
    wants_mac = ProtoField.bool("netoffload_word.wants_mac", "Takes only blocks with a MAC"),
    codecs = ProtoField.uint16("netoffload_word.codecs", "Codecs that it decodes", base.HEX),
    nonce = ProtoField.uint32("netoffload_word.nonce", "Nonce of the blocks to this NIC", base.HEX),
}
for _, field in pairs(w) do
    table.insert(word.fields, field)
end

-- Return where the word is in the octets of a TCP header, from 1; nil without a word.
local function find_word(octets)
    local at, stop = TCP_MIN_LEN + 1, 4 * math.floor(octets:byte(13) / 16)
    while at + 1 <= math.min(stop, #octets) and octets:byte(at) ~= 0 do
        local kind, len = octets:byte(at), octets:byte(at + 1)
        if kind == 1 then
            len = 1
        elseif len < 2 then
            return nil
        elseif kind == WORD.kind and len == WORD.len and octets:sub(at + 2, at + 3) == WORD.exid then
            return at + len - 1 <= #octets and at or nil
        end
        at = at + len
    end
    return nil
end

function word.dissector(tvb, pinfo, root)
    local header, from = tcp_headers(), addresses()
    local octets = header and from and header.range:raw()
    if not octets or #octets < TCP_MIN_LEN or band(octets:byte(14), 2) == 0 then
        return
    end
    local at = find_word(octets)
    if not at then
        return
    end
    local range = header.range(at - 1, WORD.len)
    local tree = root:add(word, range)
    tree:add(w.version, range(4, 1))
    tree:add(w.wants_mac, range(5, 1), band(range(5, 1):uint(), WANTS_MAC) ~= 0)
    tree:add(w.codecs, range(6, 2))
    tree:add(w.nonce, range(8, 4))
    if range(4, 1):uint() == VERSION and not pinfo.visited then
        known[reversed(from, octets:sub(1, 4))] = range(8, 4):uint()
    end
end

register_postdissector(word)
