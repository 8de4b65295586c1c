/** The tiny router behind real sockets on loopback, and clients of it. */
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { WebSocket, WebSocketServer } from "ws";

import { connect, type Client, type ConnectOptions, type WebSocketConstructor } from "../src/index.js";
import type { ClientMessage } from "../src/messages.js";
import { TinyRouter } from "./tiny-router.js";

export class SocketRouter {
  readonly tiny = new TinyRouter();
  private server: WebSocketServer | null = null;
  private readonly clients: Client[] = [];
  port = 0;

  static async start(): Promise<SocketRouter> {
    const router = new SocketRouter();
    await router.listen();
    return router;
  }

  get url(): string {
    return `ws://127.0.0.1:${this.port}/sync`;
  }

  /** Listens on the port it had before, if it had one. */
  async listen(): Promise<void> {
    const server = new WebSocketServer({ host: "127.0.0.1", port: this.port });
    server.on("connection", (socket) => {
      const peer = this.tiny.accept(
        (message) => socket.send(JSON.stringify(message)),
        (code, reason) => socket.close(code, reason),
      );
      socket.on("message", (data: Buffer) => peer.receive(JSON.parse(data.toString("utf8")) as ClientMessage));
      socket.on("close", () => peer.leave());
    });
    await once(server, "listening");
    this.port = (server.address() as AddressInfo).port;
    this.server = server;
  }

  /** Ends as a process does that is killed: no goodbye. What is stored stays. */
  async kill(): Promise<void> {
    const { server } = this;
    if (server === null) return;
    this.cut();
    this.server = null;
    await new Promise((resolve) => server.close(resolve));
  }

  /** Cuts all connections. */
  cut(): void {
    for (const socket of this.server?.clients ?? []) socket.terminate();
  }

  /** Sends something to everybody, whatever it is. */
  shout(data: string | Uint8Array): void {
    for (const socket of this.server?.clients ?? []) socket.send(data);
  }

  connect(options: ConnectOptions = {}): Client {
    const client = connect(this.url, { WebSocket: NodeSocket, random: () => 0, ...options });
    this.clients.push(client);
    return client;
  }

  async stop(): Promise<void> {
    for (const client of this.clients) client.close();
    await this.kill();
  }
}

export const NodeSocket = WebSocket as unknown as WebSocketConstructor;

/** Resolves with the first event that satisfies `isWanted`. */
export function first<Event>(
  subscribe: (listener: (event: Event) => void) => () => void,
  isWanted: (event: Event) => boolean = () => true,
): Promise<Event> {
  return new Promise((resolve) => {
    const stop = subscribe((event) => {
      if (!isWanted(event)) return;
      stop();
      resolve(event);
    });
  });
}

interface HasStatus {
  readonly status: string;
  on(name: "status", listener: (event: { status: string; error: Error | null }) => void): () => void;
}

/** Resolves once it has the status, at once if it has it. */
export async function reaches(one: HasStatus, status: string): Promise<void> {
  if (one.status === status) return;
  await first<{ status: string }>((listener) => one.on("status", listener), (event) => event.status === status);
}
