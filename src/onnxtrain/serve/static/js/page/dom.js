/** Elements of the page by their ids, and files that it hands out. */
export function element(id) {
    const found = document.getElementById(id);
    if (found === null)
        throw new Error(`the page has no #${id}`);
    return found;
}
export const button = (id) => element(id);
export const field = (id) => element(id);
/** What a field for numbers holds. */
export function number(id) {
    const input = field(id);
    if (!input.reportValidity())
        throw new Error(`Check the field “${id}”.`);
    return Number(input.value);
}
/** The files that a field was given; it is empty afterwards, so that the same can be given again. */
export function filesOf(input) {
    const files = [...(input.files ?? [])];
    input.value = "";
    return files;
}
export const bytesOf = async (file) => new Uint8Array(await file.arrayBuffer());
/** Let the browser save a file. */
export function offer(name, bytes) {
    const url = URL.createObjectURL(new Blob([bytes.slice()], { type: "application/octet-stream" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
/** Shares from 0 to 1 with their names, as bars in a list. */
export function showBars(id, shares) {
    const list = element(id);
    list.classList.toggle("named", shares.some(([name]) => name.length > 2));
    list.replaceChildren(...shares.map(([name, share]) => bar(share, name)));
}
function bar(share, label) {
    const item = document.createElement("li");
    const name = document.createElement("span");
    name.textContent = label;
    name.title = label;
    const progress = document.createElement("progress");
    progress.max = 1;
    progress.value = share;
    progress.setAttribute("aria-label", `Probability of ${label}`);
    const value = document.createElement("span");
    value.textContent = `${(share * 100).toFixed(0)} %`;
    item.append(name, progress, value);
    return item;
}
