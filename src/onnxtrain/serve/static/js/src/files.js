/** Files: by URL in browsers and Node, by path in Node. */
import { check, ModelFileError, OnnxTrainError } from "./errors.js";
/** Node's own module for files; bundlers for browsers do not follow a name in a variable. */
const nodeFiles = (name = "node:fs/promises") => import(/* @vite-ignore */ name);
/**
 * The bytes of a file by URL, or by path in Node; undefined if there is none.
 *
 * A file that must lie in a directory may not be a link that leads out of it, nor have another name
 * elsewhere (a hard link). The blobs of a snapshot in a cache of the Hugging Face hub are accepted.
 */
export async function readBytes(location, directory) {
    if (/^https?:/.test(location) || "document" in globalThis) {
        const response = await fetch(location);
        if (response.status === 404)
            return undefined;
        check(response.ok, `"${location}" cannot be read: ${response.status}.`, OnnxTrainError);
        return new Uint8Array(await response.arrayBuffer());
    }
    const { constants, open, realpath } = await nodeFiles();
    let file;
    try {
        const real = await realpath(location);
        const isInside = directory === undefined || isBelow(real, await realpath(directory));
        check(isInside, `"${location}" is a link that leads out of its directory.`, ModelFileError);
        file = await open(real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    }
    catch (error) {
        const { code } = error;
        if (code === "ENOENT")
            return undefined;
        if (code === undefined)
            throw error;
        throw new ModelFileError(`"${location}" cannot be opened: ${code}.`);
    }
    try {
        const found = await file.stat();
        check(found.isFile(), `"${location}" is not a regular file.`, ModelFileError);
        const isAlone = directory === undefined || found.nlink === 1;
        const links = `"${location}" has ${found.nlink} names (hard links): copy it, if you trust it.`;
        check(isAlone, links, ModelFileError);
        return new Uint8Array(await file.readFile());
    }
    finally {
        await file.close();
    }
}
/** Whether a path without links is in a directory, or a blob of the snapshot that this is. */
function isBelow(path, directory) {
    const after = (start) => (path.startsWith(start) ? path.slice(start.length) : "");
    if (/^[\\/]./.test(after(directory.replace(/[\\/]+$/, ""))))
        return true;
    const hub = /^.*[\\/]models--[^\\/]+(?=[\\/]snapshots[\\/].)/.exec(directory)?.[0];
    return hub !== undefined && /^[\\/]blobs[\\/]([0-9a-f]{40}|[0-9a-f]{64})$/.test(after(hub));
}
/** Write a file in Node; the old one stays complete until the new one is. */
export async function writeBytes(path, bytes) {
    const { rename, rm, writeFile } = await nodeFiles();
    const unfinished = `${path}.${crypto.randomUUID()}`;
    try {
        await writeFile(unfinished, bytes, { flush: true });
        await rename(unfinished, path);
    }
    finally {
        await rm(unfinished, { force: true });
    }
}
