/** Byte-pair encoding: neighbours become one token, those first that were learned first. */
import { check, TextError } from "./errors.js";
import { isText } from "./facts.js";

/** A pair of tokens as one number: both are below 2 ** 24. */
const keyOf = (left: number, right: number): number => left * 2 ** 24 + right;

export class Merges {
  private constructor(
    /** Pairs, and how early each was learned. */
    private readonly ranks: ReadonlyMap<number, number>,
    /** The token that each makes, by that order. */
    private readonly results: readonly number[],
  ) {}

  /** From a tokenizer.json: "a b", or ["a", "b"]. */
  static of(listed: unknown, vocabulary: ReadonlyMap<string, number>): Merges {
    check(Array.isArray(listed), 'tokenizer.json: "merges" is no list.', TextError);
    const ranks = new Map<number, number>();
    const results = listed.map((entry: unknown, rank) => {
      const pair: unknown[] = isText(entry) ? entry.split(" ") : Array.isArray(entry) ? entry : [];
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
  apply(word: readonly number[]): number[] {
    const ids = Int32Array.from(word);
    const next = Int32Array.from(word, (_, i) => i + 1);
    const before = Int32Array.from(word, (_, i) => i - 1);
    const queue = new Queue();
    const offer = (at: number): void => {
      const behind = next[at] as number;
      if (at < 0 || behind >= ids.length) return;
      const rank = this.ranks.get(keyOf(ids[at] as number, ids[behind] as number));
      if (rank !== undefined) queue.push(rank, at);
    };
    for (let i = 0; i + 1 < ids.length; i++) offer(i);
    for (let best = queue.pop(); best !== undefined; best = queue.pop()) {
      const { rank, at } = best;
      const behind = next[at] as number;
      const isGone = ids[at] === GONE || behind >= ids.length;
      // what was offered may have been merged into something else since
      if (isGone || this.ranks.get(keyOf(ids[at] as number, ids[behind] as number)) !== rank) continue;
      ids[at] = this.results[rank] as number;
      ids[behind] = GONE;
      next[at] = next[behind] as number;
      if ((next[at] as number) < ids.length) before[next[at] as number] = at;
      offer(at);
      if ((before[at] as number) >= 0) offer(before[at] as number);
    }
    return Array.from(ids).filter((id) => id !== GONE);
  }
}

const GONE = -1;

/** The lowest rank first, and of equal ones the leftmost. */
class Queue {
  private readonly heap: { rank: number; at: number }[] = [];

  push(rank: number, at: number): void {
    const { heap } = this;
    heap.push({ rank, at });
    for (let i = heap.length - 1; i > 0; ) {
      const parent = (i - 1) >> 1;
      if (!this.isBefore(i, parent)) break;
      this.swap(i, parent);
      i = parent;
    }
  }

  pop(): { rank: number; at: number } | undefined {
    const { heap } = this;
    const best = heap[0];
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return best;
    heap[0] = last;
    for (let i = 0; ; ) {
      const [left, right] = [2 * i + 1, 2 * i + 2];
      let least = i;
      if (left < heap.length && this.isBefore(left, least)) least = left;
      if (right < heap.length && this.isBefore(right, least)) least = right;
      if (least === i) return best;
      this.swap(i, least);
      i = least;
    }
  }

  private isBefore(i: number, j: number): boolean {
    const [a, b] = [this.heap[i], this.heap[j]] as { rank: number; at: number }[];
    return a!.rank < b!.rank || (a!.rank === b!.rank && a!.at < b!.at);
  }

  private swap(i: number, j: number): void {
    const { heap } = this;
    [heap[i], heap[j]] = [heap[j]!, heap[i]!];
  }
}
