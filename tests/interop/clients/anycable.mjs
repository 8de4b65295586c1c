// Drives `@anycable/core` in the extended protocol, with as little of Yjs as it takes: updates are
// applied as they come and nothing is ever asked for, so whatever was missed comes by offsets alone.
//
//   node anycable.mjs anycable <url> <path>
//
//   {"insert": [at, text]}  {"text": true}      the shared text
//   {"offsets": true}                           of the messages that came, in order
//   {"disconnect": true}                        the network fails: the socket ends without a word
//   {"connect": true}                           it is back
//
// What the protocol has to say (`history_received`, `history_not_found`) goes out as events.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { createCable } from "@anycable/core";
import WebSocket from "ws";

const require = createRequire(import.meta.url);
const Y = require("yjs");
const sync = require("y-protocols/sync");
const { createDecoder, readVarUint } = require("lib0/decoding");
const { createEncoder, toUint8Array, writeVarUint } = require("lib0/encoding");

const FRAME_SYNC = 0;

const [, url, path] = process.argv.slice(2);
const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const doc = new Y.Doc();
const text = doc.getText("t");
const offsets = [];

const cable = createCable(url, {
  protocol: "actioncable-v1-ext-json",
  websocketImplementation: WebSocket,
  // Reconnecting is up to the test.
  reconnectStrategy: () => 3_600_000,
});
const channel = cable.subscribeTo("SyncChannel", { path });
channel.on("connect", () => say({ event: "connected" }));
channel.on("info", ({ type }) => say({ event: type }));
channel.on("message", (message, meta) => {
  if (meta) offsets.push(meta.offset);
  if (message.op !== "update") return;
  const decoder = createDecoder(Buffer.from(message.update, "base64"));
  if (readVarUint(decoder) === FRAME_SYNC) {
    sync.readSyncMessage(decoder, createEncoder(), doc, "router");
  }
});

doc.on("update", (update, origin) => {
  if (origin === "router") return;
  const encoder = createEncoder();
  writeVarUint(encoder, FRAME_SYNC);
  sync.writeUpdate(encoder, update);
  channel.send({ update: Buffer.from(toUint8Array(encoder)).toString("base64") });
});

function cut() {
  const socket = cable.transport.ws;
  socket.once("close", () => say({ event: "disconnected" }));
  socket.terminate();
}

function carryOut(command) {
  if (command.insert) text.insert(...command.insert);
  else if (command.text) say({ text: text.toString() });
  else if (command.offsets) say({ offsets });
  else if (command.disconnect) cut();
  else if (command.connect) cable.connect();
}

createInterface({ input: process.stdin }).on("line", (line) => carryOut(JSON.parse(line)));
process.stdin.on("end", () => process.exit(0));
say({ event: "ready" });
