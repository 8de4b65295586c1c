// SMP over a WebSocket from JavaScript, with the cryptography of Node alone and nothing of ours.
//
//   node smp_web.mjs ws|node <url> <fingerprint, hex>
//
// Believes the router for its proof, makes a queue, sends to it, receives, acknowledges, and says what it
// saw as one line of JSON. Messages are boxed in a way that Node has no words for: whoever started this
// opens them, with the key that is said here too. Without a key in its hello, blocks are only padded.
import { createHash, createPublicKey, diffieHellman, generateKeyPairSync, randomBytes, sign, verify,
  X509Certificate } from "node:crypto";

const BLOCK_BYTES = 16384;
const [kind, url, fingerprint] = process.argv.slice(2);
const fail = (why) => {
  process.stdout.write(JSON.stringify({ failed: why }) + "\n");
  process.exit(1);
};
const must = (is, why) => is || fail(why);

// ---------------------------------------------------------------------------------------- primitives

const short = (bytes) => Buffer.concat([Buffer.from([bytes.length]), bytes]);
const word = (text) => Buffer.from(text, "ascii");
const w16 = (number) => Buffer.from([number >> 8, number & 255]);

class Reader {
  constructor(data) {
    this.data = data;
    this.at = 0;
  }
  take(count) {
    must(this.at + count <= this.data.length, "a message is too short");
    this.at += count;
    return this.data.subarray(this.at - count, this.at);
  }
  u8() { return this.take(1)[0]; }
  w16() { return this.take(2).readUInt16BE(); }
  short() { return this.take(this.u8()); }
  large() { return this.take(this.w16()); }
  tail() { return this.take(this.data.length - this.at); }
}

function padded(content) {
  const block = Buffer.alloc(BLOCK_BYTES, "#");
  w16(content.length).copy(block);
  content.copy(block, 2);
  return block;
}

// -------------------------------------------------------------------------------------- the WebSocket

const challenge = randomBytes(32);
const Sockets = kind === "ws" ? (await import("ws")).default : globalThis.WebSocket;
const target = `${url}/?challenge=${challenge.toString("base64url")}`;
// `ws` offers compression, as browsers do; it must not be taken up.
const socket = kind === "ws"
  ? new Sockets(target, { rejectUnauthorized: false, ALPNProtocols: ["http/1.1"] })
  : new Sockets(target);
socket.binaryType = "arraybuffer";

const blocks = [];
let wake = () => {};
socket.addEventListener("message", ({ data }) => {
  must(data instanceof ArrayBuffer && data.byteLength === BLOCK_BYTES, "no block came");
  blocks.push(Buffer.from(data));
  wake();
});
socket.addEventListener("error", (event) => fail(`${event.message ?? event.type}`));
socket.addEventListener("close", ({ code }) => fail(`closed with ${code}`));

async function nextContent() {
  while (!blocks.length) await new Promise((resolve) => (wake = resolve));
  return new Reader(blocks.shift()).large();
}

// ------------------------------------------------------------------------------------------ the hello

const hello = new Reader(await nextContent());
const versions = [hello.w16(), hello.w16()];
const sessionId = hello.short();
const chain = Array.from({ length: hello.u8() }, () => hello.large());
const signedKey = hello.large();
const proof = hello.short();

const [leaf, identity] = chain.map((der) => new X509Certificate(der));
must(createHash("sha256").update(chain[1]).digest("hex") === fingerprint, "another router");
must(leaf.verify(identity.publicKey) && identity.verify(identity.publicKey), "a broken chain");
must(verify(null, Buffer.concat([challenge, sessionId]), leaf.publicKey, proof), "a wrong proof");
must(!verify(null, Buffer.concat([randomBytes(32), sessionId]), leaf.publicKey, proof), "any proof");
// 3078, then what is signed: 302c and the key; then the algorithm and the signature.
must(verify(null, signedKey.subarray(2, 48), leaf.publicKey, signedKey.subarray(-64)), "a wrong key");
must(createPublicKey({ key: signedKey.subarray(4, 48), format: "der", type: "spki" })
  .asymmetricKeyType === "x25519", "a key of another kind");

const version = 20;
socket.send(padded(Buffer.concat([w16(version), short(Buffer.from(fingerprint, "hex")), word("F0")])));

// -------------------------------------------------------------------------------------------- commands

async function transmissions() {
  const reader = new Reader(await nextContent());
  return Array.from({ length: reader.u8() }, () => {
    const one = new Reader(reader.large());
    must(one.short().length === 0, "the router authorizes nothing");
    return { corrId: one.short(), entityId: one.short(), message: one.tail() };
  });
}

const events = [];

async function ask(command, entityId, key) {
  const corrId = randomBytes(24);
  const body = Buffer.concat([short(corrId), short(entityId), command]);
  const authorization = key
    ? Buffer.concat([short(sign(null, Buffer.concat([short(sessionId), body]), key)), word("0")])
    : short(Buffer.alloc(0));
  const transmission = Buffer.concat([authorization, body]);
  socket.send(padded(Buffer.concat([Buffer.from([1]), w16(transmission.length), transmission])));
  for (;;) {
    let answer;
    for (const each of await transmissions()) {
      if (each.corrId.equals(corrId)) answer = each.message;
      else events.push(each);
    }
    if (answer) return answer;
  }
}

async function event() {
  while (!events.length) events.push(...(await transmissions()));
  return events.shift();
}

const encode = (key) => short(key.export({ format: "der", type: "spki" }));
const owner = generateKeyPairSync("ed25519");
const secret = generateKeyPairSync("x25519");
const created = await ask(
  Buffer.concat([word("NEW "), encode(owner.publicKey), encode(secret.publicKey), word("0S1M00")]),
  Buffer.alloc(0), owner.privateKey);
must(created.subarray(0, 4).toString() === "IDS ", `NEW was answered ${created.subarray(0, 40)}`);
const ids = new Reader(created.subarray(4));
const [recipientId, senderId, routerKey] = [ids.short(), ids.short(), ids.short()];
const shared = diffieHellman({
  privateKey: secret.privateKey,
  publicKey: createPublicKey({ key: routerKey, format: "der", type: "spki" }),
});

const messages = [];
for (const body of ["hello", "w".repeat(16048)]) {
  const sent = await ask(Buffer.concat([word("SEND T "), Buffer.from(body)]), senderId);
  must(sent.toString() === "OK", `SEND was answered ${sent.subarray(0, 40)}`);
  const { corrId, entityId, message } = await event();
  must(corrId.length === 0 && entityId.equals(recipientId), "that is no event of the queue");
  must(message.subarray(0, 4).toString() === "MSG ", "that is no message");
  const received = new Reader(message.subarray(4));
  const messageId = received.short();
  messages.push({ id: messageId.toString("hex"), body: received.tail().toString("hex") });
  const acknowledged = await ask(
    Buffer.concat([word("ACK "), short(messageId)]), recipientId, owner.privateKey);
  must(acknowledged.toString() === "OK", "the message was not acknowledged");
}

process.stdout.write(JSON.stringify({
  versions,
  sessionIdBytes: sessionId.length,
  extensions: socket.extensions,
  secret: shared.toString("hex"),
  messages,
}) + "\n");
process.exit(0);
