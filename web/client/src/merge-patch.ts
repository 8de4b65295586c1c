/**
 * JSON Merge Patch, RFC 7396: how a mutation folds into a document of kind `json`.
 *
 * Arguments are never changed, the result is frozen if they are. What a patch does not touch is shared between
 * the old state and the new one.
 */
import { isJsonObject, setName, type Json } from "./json.js";

/** The target with the patch folded in: names are merged, `null` takes one away, anything else replaces. */
export function mergePatch(target: Json | undefined, patch: Json): Json {
  if (!isJsonObject(patch)) return patch;
  const result: Record<string, Json> = isJsonObject(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) {
      delete result[name];
    } else {
      setName(result, name, mergePatch(Object.hasOwn(result, name) ? result[name] : undefined, value));
    }
  }
  return Object.freeze(result);
}
