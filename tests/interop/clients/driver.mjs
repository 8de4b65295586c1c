// Drives one Yjs client that others wrote: commands come in as lines of JSON, answers go out as such.
//
//   node driver.mjs y-websocket <url> <room>
//   node driver.mjs actioncable <url> <path>
//
//   {"insert": [at, text]}  {"delete": [at, length]}  {"text": true}     the shared text
//   {"show": state}         {"present": true}                            awareness
//   {"disconnect": true}    {"connect": true}
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import WebSocket from "ws";

// All from one module system: two copies of Yjs in a process do not understand each other.
const require = createRequire(import.meta.url);
const Y = require("yjs");

// What a browser has and Node has not, as far as these clients look.
globalThis.self = globalThis;
globalThis.WebSocket = WebSocket;
globalThis.addEventListener ??= () => {};
globalThis.removeEventListener ??= () => {};
globalThis.document ??= { visibilityState: "visible" };

const [kind, url, name] = process.argv.slice(2);
const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const doc = new Y.Doc();
const text = doc.getText("t");

function open() {
  if (kind === "y-websocket") {
    const { WebsocketProvider } = require("y-websocket");
    const provider = new WebsocketProvider(url, name, doc, { disableBc: true });
    provider.on("sync", (synced) => synced && say({ event: "synced" }));
    provider.on("status", ({ status }) => say({ event: status }));
    return {
      awareness: provider.awareness,
      disconnect: () => provider.disconnect(),
      connect: () => provider.connect(),
    };
  }
  const { createConsumer } = require("@rails/actioncable");
  const { WebsocketProvider } = require("@y-rb/actioncable");
  const consumer = createConsumer(url);
  const provider = new WebsocketProvider(doc, consumer, "SyncChannel", { path: name });
  provider.on?.("synced", (synced) => synced && say({ event: "synced" }));
  return {
    awareness: provider.awareness,
    disconnect: () => consumer.disconnect(),
    connect: () => consumer.connect(),
  };
}

const client = open();

function carryOut(command) {
  if (command.insert) text.insert(...command.insert);
  else if (command.delete) text.delete(...command.delete);
  else if (command.text) say({ text: text.toString() });
  else if (command.show !== undefined) client.awareness.setLocalState(command.show);
  else if (command.present) {
    const others = [...client.awareness.getStates()].filter(([id]) => id !== doc.clientID);
    say({ present: others.map(([, state]) => state) });
  } else if (command.disconnect) client.disconnect();
  else if (command.connect) client.connect();
}

createInterface({ input: process.stdin }).on("line", (line) => carryOut(JSON.parse(line)));
process.stdin.on("end", () => process.exit(0));
say({ event: "ready" });
