/** Files that were dropped or chosen, those in folders included. */

/** A file, and the name of the folder that it lies in; "" for none. */
export interface Dropped {
  readonly file: File;
  readonly folder: string;
}

const MAX_FILES = 10_000;
const MAX_DEPTH = 8;

/** Everything in a drop. Call it while the event is handled: browsers forget the entries then. */
export function droppedFiles(transfer: DataTransfer): Promise<Dropped[]> {
  const items = [...transfer.items].filter(({ kind }) => kind === "file");
  const entries = items.map((item) => item.webkitGetAsEntry());
  const files = items.map((item) => item.getAsFile());
  return inAll(entries, files);
}

async function inAll(
  entries: readonly (FileSystemEntry | null)[],
  files: readonly (File | null)[],
): Promise<Dropped[]> {
  const found: Dropped[] = [];
  for (const [i, entry] of entries.entries()) {
    const file = files[i];
    if (entry?.isDirectory === true) await collect(entry as FileSystemDirectoryEntry, found, 1);
    else if (file) found.push({ file, folder: "" });
  }
  return found;
}

async function collect(
  folder: FileSystemDirectoryEntry,
  found: Dropped[],
  depth: number,
): Promise<void> {
  if (depth > MAX_DEPTH) throw new Error(`Folders are nested more than ${MAX_DEPTH} deep.`);
  const reader = folder.createReader();
  for (;;) {
    // a reader gives some hundred entries at a time, and none at the end
    const entries = await new Promise<FileSystemEntry[]>((done, fail) => reader.readEntries(done, fail));
    if (entries.length === 0) return;
    for (const entry of entries) {
      if (entry.isDirectory) {
        await collect(entry as FileSystemDirectoryEntry, found, depth + 1);
        continue;
      }
      found.push({ file: await fileOf(entry as FileSystemFileEntry), folder: folder.name });
      if (found.length > MAX_FILES) throw new Error(`The folders have more than ${MAX_FILES} files.`);
    }
  }
}

const fileOf = (entry: FileSystemFileEntry): Promise<File> =>
  new Promise((done, fail) => entry.file(done, fail));

/** The files of a field that takes a whole folder. */
export const chosenFiles = (files: readonly File[]): Dropped[] =>
  files.slice(0, MAX_FILES).map((file) => {
    const folder = file.webkitRelativePath.split("/").at(-2) ?? "";
    return { file, folder };
  });

/** Whether a file is a picture that browsers can read. */
export const isPicture = ({ name, type }: File): boolean =>
  /^image\/(?!svg)/.test(type) || /\.(png|jpe?g|webp|gif|bmp|avif)$/i.test(name);
