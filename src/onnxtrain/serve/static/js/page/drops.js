/** Files that were dropped or chosen, those in folders included. */
const MAX_FILES = 10_000;
const MAX_DEPTH = 8;
/** Everything in a drop. Call it while the event is handled: browsers forget the entries then. */
export function droppedFiles(transfer) {
    const items = [...transfer.items].filter(({ kind }) => kind === "file");
    const entries = items.map((item) => item.webkitGetAsEntry());
    const files = items.map((item) => item.getAsFile());
    return inAll(entries, files);
}
async function inAll(entries, files) {
    const found = [];
    for (const [i, entry] of entries.entries()) {
        const file = files[i];
        if (entry?.isDirectory === true)
            await collect(entry, found, 1);
        else if (file)
            found.push({ file, folder: "" });
    }
    return found;
}
async function collect(folder, found, depth) {
    if (depth > MAX_DEPTH)
        throw new Error(`Folders are nested more than ${MAX_DEPTH} deep.`);
    const reader = folder.createReader();
    for (;;) {
        // a reader gives some hundred entries at a time, and none at the end
        const entries = await new Promise((done, fail) => reader.readEntries(done, fail));
        if (entries.length === 0)
            return;
        for (const entry of entries) {
            if (entry.isDirectory) {
                await collect(entry, found, depth + 1);
                continue;
            }
            found.push({ file: await fileOf(entry), folder: folder.name });
            if (found.length > MAX_FILES)
                throw new Error(`The folders have more than ${MAX_FILES} files.`);
        }
    }
}
const fileOf = (entry) => new Promise((done, fail) => entry.file(done, fail));
/** The files of a field that takes a whole folder. */
export const chosenFiles = (files) => files.slice(0, MAX_FILES).map((file) => {
    const folder = file.webkitRelativePath.split("/").at(-2) ?? "";
    return { file, folder };
});
/** Whether a file is a picture that browsers can read. */
export const isPicture = ({ name, type }) => /^image\/(?!svg)/.test(type) || /\.(png|jpe?g|webp|gif|bmp|avif)$/i.test(name);
