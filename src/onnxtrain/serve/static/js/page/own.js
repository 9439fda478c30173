import { Camera } from "./camera.js";
import { button, element, field, filesOf } from "./dom.js";
import { chosenFiles, isPicture } from "./drops.js";
import { numbersOf, paint } from "./images.js";
/** Classes that are shown at once; more are added one by one. */
const SHOWN = 6;
const MAX_IMAGES = 2000;
const THUMBNAILS = 12;
/** The pictures of one class. */
class Group {
    constructor(label, usualName, form) {
        this.label = label;
        this.usualName = usualName;
        this.form = form;
        this.images = [];
        const template = element("group");
        const copy = template.content.cloneNode(true);
        this.root = copy.firstElementChild;
        this.field = this.part(".name");
        this.name = usualName;
        this.show();
    }
    part(selector) {
        return this.root.querySelector(selector);
    }
    get name() {
        return this.field.value.trim() || this.usualName;
    }
    set name(name) {
        this.field.value = name;
    }
    /** Whether somebody has used it: given it pictures or another name. */
    get isTaken() {
        return this.images.length > 0 || this.name !== this.usualName;
    }
    add(image) {
        this.images.push(image);
        this.show();
    }
    clear() {
        this.images.length = 0;
        this.show();
    }
    show() {
        const count = this.images.length;
        this.part(".count").textContent = count === 1 ? "1 image" : `${count} images`;
        for (const selector of [".samples", ".empty"])
            this.part(selector).hidden = count === 0;
        const canvases = this.images.slice(-THUMBNAILS).map((image) => {
            const canvas = document.createElement("canvas");
            paint(canvas, image, this.form);
            return canvas;
        });
        this.part(".samples").replaceChildren(...canvases);
    }
}
export class OwnImages {
    /**
     * @param changed - examples were added or taken away.
     * @param look - say what the model sees in a picture.
     */
    constructor(desk, changed, look) {
        this.desk = desk;
        this.changed = changed;
        this.groups = [];
        this.names = [];
        this.classes = 0;
        this.camera = new Camera(desk, async (video) => {
            if (this.form !== undefined)
                await look(numbersOf(video, this.form, true));
        });
        button("more-classes").onclick = () => this.addGroup();
        field("folder").onchange = () => desk.guard(() => this.addFiles(chosenFiles(filesOf(field("folder")))));
    }
    /** Show the card for a model that takes pictures and gives classes; hide it for any other. */
    use(form, labels, names) {
        const classes = labels?.classes ?? 0;
        const isSame = `${form?.shape}/${classes}` === `${this.form?.shape}/${this.classes}`;
        this.form = classes > 0 ? form : undefined;
        element("own").hidden = this.form === undefined;
        if (isSame || this.form === undefined)
            return;
        [this.classes, this.names, this.groups] = [classes, names, []];
        element("groups").replaceChildren();
        this.camera.shape(this.form);
        for (let i = 0; i < Math.min(classes, SHOWN); i++)
            this.addGroup();
    }
    get examples() {
        return this.groups.flatMap(({ images, label }) => images.map((image) => ({ image, label })));
    }
    /** The names of all classes, those of the groups first. */
    get classNames() {
        return Array.from({ length: this.classes }, (_, i) => this.groups[i]?.name ?? this.nameOf(i));
    }
    /** Pictures for one class, or those of several folders for the classes of their names. */
    async addFiles(files, group) {
        if (this.form === undefined)
            throw new Error("The model does not tell pictures apart by classes.");
        const pictures = files.filter(({ file }) => isPicture(file));
        if (pictures.length === 0) {
            throw new Error("No pictures among the files: png, jpg, webp, gif or bmp.");
        }
        const loose = group === undefined && pictures.some(({ folder }) => folder === "");
        if (loose)
            throw new Error("Drop pictures on a class, or folders that are called like classes.");
        const target = group === undefined ? this.groupsFor(pictures) : () => group;
        const unreadable = [];
        for (const picture of pictures) {
            try {
                this.add(await createImageBitmap(picture.file), target(picture));
            }
            catch (error) {
                if (!(error instanceof DOMException))
                    throw error;
                unreadable.push(picture.file.name);
            }
        }
        const read = pictures.length - unreadable.length;
        const names = unreadable.slice(0, 3).join(", ");
        const rest = names === "" ? "" : ` These cannot be read: ${names} …`;
        this.changed();
        this.desk.say(`${read} ${read === 1 ? "picture" : "pictures"} added.${rest}`);
    }
    /** The group that a drop is for: the one below the pointer. */
    groupAt(target) {
        return this.groups.find(({ root }) => target instanceof Node && root.contains(target));
    }
    add(bitmap, group) {
        if (this.form === undefined)
            return;
        const count = this.examples.length;
        if (count >= MAX_IMAGES)
            throw new Error(`${MAX_IMAGES} pictures are the most here.`);
        group.add(numbersOf(bitmap, this.form));
        bitmap.close();
    }
    /** A group for each folder: the one of its name, else one that nobody has used. */
    groupsFor(pictures) {
        const folders = [...new Set(pictures.map(({ folder }) => folder))].sort();
        const strange = folders.filter((folder) => !this.classNames.includes(folder));
        const taken = this.groups.filter((group) => group.isTaken).length;
        const free = this.classes - taken;
        if (strange.length > free) {
            const names = strange.slice(0, 6).join(", ");
            throw new Error(`The folders are ${folders.length} classes (${names} …), and the model has ${this.classes}, ` +
                `${free} of them unused. Use a model with more classes.`);
        }
        const chosen = new Map();
        for (const folder of folders) {
            while (this.classNames.indexOf(folder) >= this.groups.length)
                this.addGroup();
            const named = this.groups.find(({ name }) => name === folder);
            chosen.set(folder, named ?? this.unused(folders));
            chosen.get(folder).name = folder;
        }
        return ({ folder }) => chosen.get(folder);
    }
    /** The first group that nobody has used and that is not called like one of the folders. */
    unused(folders) {
        const isFree = (group) => !group.isTaken && !folders.includes(group.name);
        const known = this.groups.find(isFree) ?? this.addGroup();
        if (known === undefined)
            throw new Error(`The model has ${this.classes} classes, and all are used.`);
        return known;
    }
    nameOf(label) {
        return this.names[label] ?? String(label);
    }
    addGroup() {
        const { form, groups } = this;
        if (form === undefined || groups.length >= this.classes)
            return undefined;
        const group = new Group(groups.length, this.nameOf(groups.length), form);
        groups.push(group);
        element("groups").append(group.root);
        button("more-classes").hidden = groups.length >= this.classes;
        const files = group.part("input[type=file]");
        files.onchange = () => this.desk.guard(() => this.addFiles(filesOf(files).map((file) => ({ file, folder: "" })), group));
        group.part(".empty").onclick = () => {
            group.clear();
            this.changed();
        };
        group.part(".capture").onclick = () => this.desk.guard(async () => {
            const video = await this.camera.frame();
            group.add(numbersOf(video, form, true));
            this.changed();
        });
        return group;
    }
}
