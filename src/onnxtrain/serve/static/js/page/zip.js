/** Zip archives: those of NumPy and of adapters are read, adapters are written. */
const END_OF_DIRECTORY = 0x06054b50;
const DIRECTORY_ENTRY = 0x02014b50;
const LOCAL_HEADER = 0x04034b50;
const STORED = 0;
const DEFLATED = 8;
const VERSION = 20;
/** A file may grow so many times when it is unpacked, or to so many bytes; as in `readfile.py`. */
const GROWTH = 200;
const ALLOWED_BYTES = 2 ** 28;
/** What reads a file that may be damaged in any way: errors that are not its own become one. */
export async function orDamaged(name, work) {
    try {
        return await work();
    }
    catch (error) {
        const isOurs = error instanceof Error && !(error instanceof RangeError || error instanceof TypeError);
        throw isOurs ? error : new Error(`${name} is damaged.`);
    }
}
/** The files in an archive, by name. */
export async function unzip(bytes, name) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let end = bytes.length - 22;
    while (end >= 0 && view.getUint32(end, true) !== END_OF_DIRECTORY)
        end -= 1;
    if (end < 0)
        throw new Error(`${name} is not a .${name.split(".").at(-1)} file.`);
    const found = new Map();
    let allowed = Math.max(GROWTH * bytes.length, ALLOWED_BYTES);
    let at = view.getUint32(end + 16, true);
    for (let left = view.getUint16(end + 10, true); left > 0; left--) {
        if (view.getUint32(at, true) !== DIRECTORY_ENTRY)
            throw new Error(`${name} is damaged.`);
        const method = view.getUint16(at + 10, true);
        const [packed, size] = [view.getUint32(at + 20, true), view.getUint32(at + 24, true)];
        const nameLength = view.getUint16(at + 28, true);
        const member = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + nameLength));
        const local = view.getUint32(at + 42, true);
        const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
        if (method !== STORED && method !== DEFLATED)
            throw new Error(`${name}: unknown compression.`);
        const raw = bytes.subarray(start, start + packed);
        const content = method === STORED ? raw : await inflate(raw, name, allowed);
        allowed -= content.length;
        if (content.length !== size)
            throw new Error(`${name} is damaged: ${member} has another size.`);
        found.set(member, content);
        at += 46 + nameLength + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
    }
    return found;
}
/** Unpack to so many bytes at most: a few kilobytes can hold gigabytes. */
async function inflate(bytes, name, allowed) {
    const stream = new Blob([bytes.slice()]).stream();
    const reader = stream.pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    const chunks = [];
    let size = 0;
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
        if (value === undefined)
            continue;
        chunks.push(value);
        size += value.length;
        if (size <= allowed)
            continue;
        await reader.cancel();
        throw new Error(`${name} holds ${GROWTH} times as much as it has: that is how bombs are made.`);
    }
    return new Uint8Array(await new Blob(chunks).arrayBuffer());
}
/** An archive of files as they are: adapters are small, and numbers hardly get smaller. */
export function zip(files) {
    const chunks = [];
    const directory = [];
    let at = 0;
    const add = (chunk) => {
        chunks.push(chunk);
        at += chunk.length;
    };
    for (const [name, content] of Object.entries(files)) {
        const label = new TextEncoder().encode(name);
        const common = [VERSION, 0, STORED, 0, 0x21]; // no time, and the first day that there is
        const sizes = [crc32(content), content.length, content.length];
        directory.push(record([DIRECTORY_ENTRY], [VERSION, ...common], sizes, [label.length, 0, 0, 0, 0], [0, at]), label);
        add(record([LOCAL_HEADER], common, sizes, [label.length, 0]));
        add(label);
        add(content);
    }
    const start = at;
    directory.forEach(add);
    const count = Object.keys(files).length;
    add(record([END_OF_DIRECTORY], [0, 0, count, count], [at - start, start], [0]));
    const out = new Uint8Array(at);
    let place = 0;
    for (const chunk of chunks) {
        out.set(chunk, place);
        place += chunk.length;
    }
    return out;
}
/** Numbers of four bytes and of two, in turns. */
function record(...parts) {
    const widths = parts.map((_, i) => (i % 2 === 0 ? 4 : 2));
    const size = parts.reduce((sum, part, i) => sum + part.length * widths[i], 0);
    const view = new DataView(new ArrayBuffer(size));
    let at = 0;
    parts.forEach((part, i) => {
        for (const value of part) {
            if (widths[i] === 4)
                view.setUint32(at, value, true);
            else
                view.setUint16(at, value, true);
            at += widths[i];
        }
    });
    return new Uint8Array(view.buffer);
}
function crc32(bytes) {
    let crc = 0xffffffff;
    for (const byte of bytes) {
        crc ^= byte;
        for (let bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
    }
    return (crc ^ 0xffffffff) >>> 0;
}
