/** A name and a tone for whoever has opened the page; there is no login. */
import { TONES } from "./model.js";
const ADJECTIVES = ["Calm", "Bright", "Swift", "Gentle", "Bold", "Quiet", "Merry", "Keen", "Wise", "Sunny"];
const ANIMALS = ["Heron", "Otter", "Lynx", "Finch", "Badger", "Hare", "Falcon", "Marten", "Wren", "Fox"];
export function identityOf(client) {
    let hash = 2166136261;
    for (const character of client)
        hash = Math.imul(hash ^ character.codePointAt(0), 16777619) >>> 0;
    const adjective = ADJECTIVES[hash % ADJECTIVES.length];
    const animal = ANIMALS[Math.floor(hash / 16) % ANIMALS.length];
    return { name: `${adjective} ${animal}`, tone: Math.floor(hash / 256) % TONES };
}
