const FLOAT_SEEDS = new Set([
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
    "Bernoulli",
]);
const IV = [
    0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
    0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const SIGMA = [
    "0123456789abcdef", "ea489fd61c02b753",
    "b8c052fdae367194", "7931dcbe265a40f8",
    "905724afe1bc683d", "2c6a0b834d75fe19",
    "c51fed4a0763928b", "db7ec13950f4862a",
    "6fe9b308c2d714a5", "a2847615fb9e3cd0",
];
/** BLAKE2b (RFC 7693) without a key; the digest has `size` bytes. */
export function blake2b(data, size) {
    const h = [...IV];
    h[0] = h[0] ^ 0x01010000n ^ BigInt(size);
    const blocks = Math.max(1, Math.ceil(data.length / 128));
    for (let block = 0; block < blocks; block++) {
        const piece = new Uint8Array(128);
        piece.set(data.subarray(block * 128, block * 128 + 128));
        const last = block === blocks - 1;
        compress(h, new DataView(piece.buffer), last ? data.length : (block + 1) * 128, last);
    }
    const out = new DataView(new ArrayBuffer(64));
    h.forEach((word, i) => out.setBigUint64(i * 8, word, true));
    return new Uint8Array(out.buffer, 0, size);
}
function compress(h, block, count, last) {
    const v = [...h, ...IV];
    const at = (i) => v[i];
    const mask = (x) => BigInt.asUintN(64, x);
    const rotate = (x, n) => mask((x >> n) | (x << (64n - n)));
    v[12] = at(12) ^ BigInt(count);
    if (last)
        v[14] = mask(~at(14));
    const mix = (a, b, c, d, x, y) => {
        v[a] = mask(at(a) + at(b) + x);
        v[d] = rotate(at(d) ^ at(a), 32n);
        v[c] = mask(at(c) + at(d));
        v[b] = rotate(at(b) ^ at(c), 24n);
        v[a] = mask(at(a) + at(b) + y);
        v[d] = rotate(at(d) ^ at(a), 16n);
        v[c] = mask(at(c) + at(d));
        v[b] = rotate(at(b) ^ at(c), 63n);
    };
    for (let round = 0; round < 12; round++) {
        const order = SIGMA[round % 10];
        const word = (i) => block.getBigUint64(Number.parseInt(order[i], 16) * 8, true);
        for (let i = 0; i < 4; i++)
            mix(i, 4 + i, 8 + i, 12 + i, word(2 * i), word(2 * i + 1));
        for (let i = 0; i < 4; i++) {
            const [b, c, d] = [4 + ((i + 1) % 4), 8 + ((i + 2) % 4), 12 + ((i + 3) % 4)];
            mix(i, b, c, d, word(8 + 2 * i), word(9 + 2 * i));
        }
    }
    h.forEach((_, i) => (h[i] = h[i] ^ at(i) ^ at(i + 8)));
}
/** A number below 2**24 (a float attribute holds it exactly), well spread. */
export function seedOf(random, name) {
    const text = new TextEncoder().encode(`${random.seed}/${random.generation}/${name}`);
    const digest = blake2b(text, 8);
    return (digest[0] ?? 0) | ((digest[1] ?? 0) << 8) | ((digest[2] ?? 0) << 16);
}
/** Start a new generation and write the seeds of the named nodes. */
export function reseed(model, names, random) {
    random.generation += 1n;
    const wanted = new Set(names);
    if (wanted.size === 0)
        return;
    for (const node of model.allNodes()) {
        if (!wanted.has(node.name))
            continue;
        const kind = FLOAT_SEEDS.has(node.opType) ? "float" : "int";
        node.setAttribute("seed", seedOf(random, node.name), kind);
    }
}
