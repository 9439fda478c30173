/** Pictures of the user's own: from files, folders or the camera, grouped by class. */
import type { ClassLabels } from "../src/index.js";
import { Camera } from "./camera.js";
import { button, element, field, filesOf, type Desk } from "./dom.js";
import { chosenFiles, isPicture, type Dropped } from "./drops.js";
import { numbersOf, paint, type ImageForm } from "./images.js";

/** Classes that are shown at once; more are added one by one. */
const SHOWN = 6;
const MAX_IMAGES = 2000;
const THUMBNAILS = 12;

export interface Example {
  readonly image: Float32Array;
  readonly label: number;
}

/** The pictures of one class. */
class Group {
  readonly root: HTMLElement;
  readonly images: Float32Array[] = [];
  private readonly field: HTMLInputElement;

  constructor(
    readonly label: number,
    readonly usualName: string,
    private readonly form: ImageForm,
  ) {
    const template = element<HTMLTemplateElement>("group");
    const copy = template.content.cloneNode(true) as DocumentFragment;
    this.root = copy.firstElementChild as HTMLElement;
    this.field = this.part<HTMLInputElement>(".name");
    this.name = usualName;
    this.show();
  }

  part<T extends HTMLElement>(selector: string): T {
    return this.root.querySelector(selector) as T;
  }

  get name(): string {
    return this.field.value.trim() || this.usualName;
  }

  set name(name: string) {
    this.field.value = name;
  }

  /** Whether somebody has used it: given it pictures or another name. */
  get isTaken(): boolean {
    return this.images.length > 0 || this.name !== this.usualName;
  }

  add(image: Float32Array): void {
    this.images.push(image);
    this.show();
  }

  clear(): void {
    this.images.length = 0;
    this.show();
  }

  private show(): void {
    const count = this.images.length;
    this.part(".count").textContent = count === 1 ? "1 image" : `${count} images`;
    for (const selector of [".samples", ".empty"]) this.part(selector).hidden = count === 0;
    const canvases = this.images.slice(-THUMBNAILS).map((image) => {
      const canvas = document.createElement("canvas");
      paint(canvas, image, this.form);
      return canvas;
    });
    this.part(".samples").replaceChildren(...canvases);
  }
}

export class OwnImages {
  private groups: Group[] = [];
  private form: ImageForm | undefined;
  private names: readonly string[] = [];
  private classes = 0;
  private readonly camera: Camera;

  /**
   * @param changed - examples were added or taken away.
   * @param look - say what the model sees in a picture.
   */
  constructor(
    private readonly desk: Desk,
    private readonly changed: () => void,
    look: (image: Float32Array) => Promise<void>,
  ) {
    this.camera = new Camera(desk, async (video) => {
      if (this.form !== undefined) await look(numbersOf(video, this.form, true));
    });
    button("more-classes").onclick = () => this.addGroup();
    field("folder").onchange = () =>
      desk.guard(() => this.addFiles(chosenFiles(filesOf(field("folder")))));
  }

  /** Show the card for a model that takes pictures and gives classes; hide it for any other. */
  use(form: ImageForm | undefined, labels: ClassLabels | undefined, names: readonly string[]): void {
    const classes = labels?.classes ?? 0;
    const isSame = `${form?.shape}/${classes}` === `${this.form?.shape}/${this.classes}`;
    this.form = classes > 0 ? form : undefined;
    element("own").hidden = this.form === undefined;
    if (isSame || this.form === undefined) return;
    [this.classes, this.names, this.groups] = [classes, names, []];
    element("groups").replaceChildren();
    this.camera.shape(this.form);
    for (let i = 0; i < Math.min(classes, SHOWN); i++) this.addGroup();
  }

  get examples(): Example[] {
    return this.groups.flatMap(({ images, label }) => images.map((image) => ({ image, label })));
  }

  /** The names of all classes, those of the groups first. */
  get classNames(): string[] {
    return Array.from({ length: this.classes }, (_, i) => this.groups[i]?.name ?? this.nameOf(i));
  }

  /** Pictures for one class, or those of several folders for the classes of their names. */
  async addFiles(files: readonly Dropped[], group?: Group): Promise<void> {
    if (this.form === undefined) throw new Error("The model does not tell pictures apart by classes.");
    const pictures = files.filter(({ file }) => isPicture(file));
    if (pictures.length === 0) {
      throw new Error("No pictures among the files: png, jpg, webp, gif or bmp.");
    }
    const loose = group === undefined && pictures.some(({ folder }) => folder === "");
    if (loose) throw new Error("Drop pictures on a class, or folders that are called like classes.");
    const target = group === undefined ? this.groupsFor(pictures) : () => group;
    const unreadable: string[] = [];
    for (const picture of pictures) {
      try {
        this.add(await createImageBitmap(picture.file), target(picture));
      } catch (error) {
        if (!(error instanceof DOMException)) throw error;
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
  groupAt(target: EventTarget | null): Group | undefined {
    return this.groups.find(({ root }) => target instanceof Node && root.contains(target));
  }

  private add(bitmap: ImageBitmap, group: Group): void {
    if (this.form === undefined) return;
    const count = this.examples.length;
    if (count >= MAX_IMAGES) throw new Error(`${MAX_IMAGES} pictures are the most here.`);
    group.add(numbersOf(bitmap, this.form));
    bitmap.close();
  }

  /** A group for each folder: the one of its name, else one that nobody has used. */
  private groupsFor(pictures: readonly Dropped[]): (picture: Dropped) => Group {
    const folders = [...new Set(pictures.map(({ folder }) => folder))].sort();
    const strange = folders.filter((folder) => !this.classNames.includes(folder));
    const taken = this.groups.filter((group) => group.isTaken).length;
    const free = this.classes - taken;
    if (strange.length > free) {
      const names = strange.slice(0, 6).join(", ");
      throw new Error(
        `The folders are ${folders.length} classes (${names} …), and the model has ${this.classes}, ` +
          `${free} of them unused. Use a model with more classes.`,
      );
    }
    const chosen = new Map<string, Group>();
    for (const folder of folders) {
      while (this.classNames.indexOf(folder) >= this.groups.length) this.addGroup();
      const named = this.groups.find(({ name }) => name === folder);
      chosen.set(folder, named ?? this.unused(folders));
      (chosen.get(folder) as Group).name = folder;
    }
    return ({ folder }) => chosen.get(folder) as Group;
  }

  /** The first group that nobody has used and that is not called like one of the folders. */
  private unused(folders: readonly string[]): Group {
    const isFree = (group: Group): boolean => !group.isTaken && !folders.includes(group.name);
    const known = this.groups.find(isFree) ?? this.addGroup();
    if (known === undefined) throw new Error(`The model has ${this.classes} classes, and all are used.`);
    return known;
  }

  private nameOf(label: number): string {
    return this.names[label] ?? String(label);
  }

  private addGroup(): Group | undefined {
    const { form, groups } = this;
    if (form === undefined || groups.length >= this.classes) return undefined;
    const group = new Group(groups.length, this.nameOf(groups.length), form);
    groups.push(group);
    element("groups").append(group.root);
    button("more-classes").hidden = groups.length >= this.classes;
    const files = group.part<HTMLInputElement>("input[type=file]");
    files.onchange = () =>
      this.desk.guard(() =>
        this.addFiles(filesOf(files).map((file) => ({ file, folder: "" })), group),
      );
    group.part(".empty").onclick = () => {
      group.clear();
      this.changed();
    };
    group.part(".capture").onclick = () =>
      this.desk.guard(async () => {
        const video = await this.camera.frame();
        group.add(numbersOf(video, form, true));
        this.changed();
      });
    return group;
  }
}
