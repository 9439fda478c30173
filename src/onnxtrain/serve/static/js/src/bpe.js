/** Byte-pair encoding: neighbours become one token, those first that were learned first. */
import { check, TextError } from "./errors.js";
import { isText } from "./facts.js";
/** A pair of tokens as one number: both are below 2 ** 24. */
const keyOf = (left, right) => left * 2 ** 24 + right;
export class Merges {
    constructor(
    /** Pairs, and how early each was learned. */
    ranks, 
    /** The token that each makes, by that order. */
    results) {
        this.ranks = ranks;
        this.results = results;
    }
    /** From a tokenizer.json: "a b", or ["a", "b"]. */
    static of(listed, vocabulary) {
        check(Array.isArray(listed), 'tokenizer.json: "merges" is no list.', TextError);
        const ranks = new Map();
        const results = listed.map((entry, rank) => {
            const pair = isText(entry) ? entry.split(" ") : Array.isArray(entry) ? entry : [];
            const [a, b] = pair;
            const isPair = pair.length === 2 && isText(a) && isText(b);
            check(isPair, `tokenizer.json: merge ${rank} is no pair of tokens.`, TextError);
            const [left, right, both] = [a, b, a + b].map((token) => vocabulary.get(token));
            const isKnown = left !== undefined && right !== undefined && both !== undefined;
            check(isKnown, `tokenizer.json: merge ${rank} has tokens that "vocab" lacks.`, TextError);
            ranks.set(keyOf(left, right), rank);
            return both;
        });
        return new Merges(ranks, results);
    }
    /** The tokens that a word ends with, in n·log n: a word may be a whole text without spaces. */
    apply(word) {
        const ids = Int32Array.from(word);
        const next = Int32Array.from(word, (_, i) => i + 1);
        const before = Int32Array.from(word, (_, i) => i - 1);
        const queue = new Queue();
        const offer = (at) => {
            const behind = next[at];
            if (at < 0 || behind >= ids.length)
                return;
            const rank = this.ranks.get(keyOf(ids[at], ids[behind]));
            if (rank !== undefined)
                queue.push(rank, at);
        };
        for (let i = 0; i + 1 < ids.length; i++)
            offer(i);
        for (let best = queue.pop(); best !== undefined; best = queue.pop()) {
            const { rank, at } = best;
            const behind = next[at];
            const isGone = ids[at] === GONE || behind >= ids.length;
            // what was offered may have been merged into something else since
            if (isGone || this.ranks.get(keyOf(ids[at], ids[behind])) !== rank)
                continue;
            ids[at] = this.results[rank];
            ids[behind] = GONE;
            next[at] = next[behind];
            if (next[at] < ids.length)
                before[next[at]] = at;
            offer(at);
            if (before[at] >= 0)
                offer(before[at]);
        }
        return Array.from(ids).filter((id) => id !== GONE);
    }
}
const GONE = -1;
/** The lowest rank first, and of equal ones the leftmost. */
class Queue {
    constructor() {
        this.heap = [];
    }
    push(rank, at) {
        const { heap } = this;
        heap.push({ rank, at });
        for (let i = heap.length - 1; i > 0;) {
            const parent = (i - 1) >> 1;
            if (!this.isBefore(i, parent))
                break;
            this.swap(i, parent);
            i = parent;
        }
    }
    pop() {
        const { heap } = this;
        const best = heap[0];
        const last = heap.pop();
        if (last === undefined || heap.length === 0)
            return best;
        heap[0] = last;
        for (let i = 0;;) {
            const [left, right] = [2 * i + 1, 2 * i + 2];
            let least = i;
            if (left < heap.length && this.isBefore(left, least))
                least = left;
            if (right < heap.length && this.isBefore(right, least))
                least = right;
            if (least === i)
                return best;
            this.swap(i, least);
            i = least;
        }
    }
    isBefore(i, j) {
        const [a, b] = [this.heap[i], this.heap[j]];
        return a.rank < b.rank || (a.rank === b.rank && a.at < b.at);
    }
    swap(i, j) {
        const { heap } = this;
        [heap[i], heap[j]] = [heap[j], heap[i]];
    }
}
