/**
 * Numbers and strings of the user's own. Kept as JSON text: JavaScript does not tell 1 from 1.0,
 * other languages do, and a property that nobody changed must come back as it was.
 */
export class Properties {
  private readonly texts = new Map<string, string>();

  /** From a JSON object of numbers, strings and `{"float": "nan"}`. */
  constructor(json: string) {
    const member = /("(?:[^"\\]|\\.)*")\s*:\s*("(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^\s,{}"]+)/g;
    for (const [, name = "", value = ""] of json.matchAll(member)) {
      this.texts.set(JSON.parse(name) as string, value);
    }
  }

  get(name: string): number | bigint | string | undefined {
    const text = this.texts.get(name);
    if (text === undefined) return undefined;
    if (/^-?\d{16,}$/.test(text)) return BigInt(text);
    const value = JSON.parse(text) as string | number | { float: string };
    return typeof value === "object" ? Number(value.float.replace("inf", "Infinity")) : value;
  }

  set(name: string, value: number | bigint | string): void {
    const text = typeof value === "bigint" ? String(value) : JSON.stringify(value);
    const float = String(value).toLowerCase().replace("infinity", "inf");
    const isSpecial = typeof value === "number" && !Number.isFinite(value);
    this.texts.set(name, isSpecial ? `{"float": "${float}"}` : text);
  }

  names(): string[] {
    return [...this.texts.keys()].sort();
  }

  encode(): string {
    const entries = [...this.texts].map(([name, text]) => `${JSON.stringify(name)}: ${text}`);
    return `{${entries.join(", ")}}`;
  }
}
