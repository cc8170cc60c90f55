// The words that a person reads, in the language that the editor is set to: locales/<language>/main.json.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";

let words = {}; // by key

export const language = () =>
  app.extensionManager?.setting?.get?.("Comfy.Locale") ?? app.ui.settings.getSettingValue("Comfy.Locale") ?? "en";

/** What is said in the editor's language, of an object by languages. */
export const inOurs = (said) => said?.[language()] ?? said?.[language().split("-")[0]];

export async function loadWords() {
  try {
    const found = await (await api.fetchApi("/i18n")).json();
    const [exact, broad] = [language(), language().split("-")[0]];
    words = { ...found.en?.fastCompile, ...found[broad]?.fastCompile, ...found[exact]?.fastCompile };
  } catch (error) {
    console.warn(`Fast Compile: no translations: ${error.message}`); // the keys are English words
  }
}

/** The text of a key, with ``{name}`` replaced by the value of that name. */
export const say = (key, values = {}) => (words[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");

export const megabytes = (bytes) => `${Math.round(bytes / 2 ** 20)} MB`;
