/** Adapters in the page: what was trained alone, as files, and back from them. */
import {
  adapterOf, loadOnnxAdapter, loadPeft, saveOnnxAdapter, savePeft, setAdapter,
  type Adapter, type Module,
} from "../src/index.js";
import { button, bytesOf, element, field, filesOf, offer, type Desk } from "./dom.js";
import { orDamaged, unzip, zip } from "./zip.js";

const WEIGHTS = "adapter_model.safetensors";
const SETTINGS = "adapter_config.json";
/** Bytes of an adapter's file. */
const MAX_FILE = 2 ** 30;

export class Adapters {
  private module: Module | undefined;

  /** @param changed - another adapter is in use; training begins anew from it. */
  constructor(
    private readonly desk: Desk,
    private readonly changed: (name: string) => void,
  ) {
    button("save-adapter").onclick = () => desk.guard(() => this.saveForOnnxruntime());
    button("save-peft").onclick = () => desk.guard(() => this.saveForPeft());
    field("load-adapter").onchange = () => desk.guard(() => this.load());
  }

  /** Show what there is of an adapter, if the artifacts have one. */
  use(module: Module): void {
    const { adapter } = module.facts;
    this.module = module;
    element("adapter").hidden = !adapter;
    if (!adapter) return;
    const { config, places, saved } = adapter;
    const kind = config.use_dora ? "DoRA" : "LoRA";
    const layers = places.length === 1 ? "1 layer" : `${places.length} layers`;
    element("adapter-summary").textContent =
      `${kind} adapter of rank ${config.rank} beside ${layers}: only it is trained.`;
    const isPlain = !config.use_dora && saved.length === 0;
    button("save-adapter").disabled = !isPlain;
    button("save-adapter").title = isPlain ? "" : "This format holds A and B only: save it for PEFT.";
  }

  private async adapter(): Promise<Adapter> {
    if (this.module === undefined) throw new Error("The artifacts are not loaded.");
    return adapterOf(this.module);
  }

  private async saveForOnnxruntime(): Promise<void> {
    offer("adapter.onnx_adapter", saveOnnxAdapter(await this.adapter()));
    this.desk.say("The adapter is in adapter.onnx_adapter: for onnxruntime and onnxtrain.lora.");
  }

  private async saveForPeft(): Promise<void> {
    const files = await savePeft(await this.adapter());
    const names = [WEIGHTS, SETTINGS] as const;
    const archive = zip(Object.fromEntries(names.map((name) => [`adapter/${name}`, files[name]])));
    offer("adapter.zip", archive);
    this.desk.say("adapter.zip has the folder “adapter”: for PEFT and onnxtrain.lora.");
  }

  private async load(): Promise<void> {
    const files = filesOf(field("load-adapter"));
    const [first] = files;
    if (first === undefined || this.module === undefined) return;
    const large = files.find(({ size }) => size > MAX_FILE);
    if (large !== undefined) throw new Error(`${large.name} is too large for an adapter.`);
    await setAdapter(this.module, await read(files));
    this.changed(files.map(({ name }) => name).join(", "));
  }
}

/** An .onnx_adapter, the two files of PEFT, or an archive with them. */
async function read(files: readonly File[]): Promise<Adapter> {
  const contents = new Map<string, Uint8Array>();
  for (const file of files) {
    const bytes = await bytesOf(file);
    if (file.name.endsWith(".onnx_adapter")) return loadOnnxAdapter(bytes);
    const isArchive = file.name.endsWith(".zip");
    const members = isArchive
      ? await orDamaged(file.name, () => unzip(bytes, file.name))
      : [[file.name, bytes] as const];
    for (const [name, content] of members) contents.set(name.split("/").at(-1) as string, content);
  }
  const [weights, settings] = [contents.get(WEIGHTS), contents.get(SETTINGS)];
  if (weights === undefined || settings === undefined) {
    throw new Error(`Choose an .onnx_adapter, an adapter.zip, or ${WEIGHTS} and ${SETTINGS} together.`);
  }
  return loadPeft({ [WEIGHTS]: weights, [SETTINGS]: settings });
}
